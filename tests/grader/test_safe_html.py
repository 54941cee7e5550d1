"""`safe_html`: what a submission shows can be read and looked at, and does nothing."""

import base64
import contextlib
import time

import pytest
from bs4 import BeautifulSoup
from nbconvert.filters import markdown2html
from nbformat.v4 import new_output

import ranks
from autograder.grade.limits import well_formed
from autograder.grade.pages import safe_html
from tests.helpers.hostile_markup import ATTACKS, PIXEL, assert_harmless

each_attack = pytest.mark.parametrize("attack", ATTACKS)


def text_of(markup):
    return BeautifulSoup(markup, "html.parser").get_text()


def tags_of(markup):
    return [(tag.name, tag.attrs) for tag in BeautifulSoup(markup, "html.parser").find_all()]


# --- nothing acts ---------------------------------------------------------------------------------------


@each_attack
def test_clean_and_markdown_leave_nothing_that_acts(attack):
    for text in (safe_html.clean(attack), safe_html.markdown(attack), markdown2html(safe_html.markdown(attack))):
        assert_harmless(text)


@each_attack
def test_what_is_clean_stays_as_it_is(attack):
    once = safe_html.clean(attack)
    assert safe_html.clean(once) == once


def test_the_harm_would_be_seen():
    unseen = []
    for attack in ATTACKS:
        with contextlib.suppress(AssertionError):
            assert_harmless(attack)
            unseen.append(attack)
    assert len(unseen) <= 6, "Markdown, and tags that only a browser's parser finds"


def test_ids_classes_and_names_belong_to_the_page():
    marked = '<div id="total" class="points full"><a name="total" href="#total">x</a></div>'
    assert tags_of(safe_html.clean(marked)) == [
        ("div", {}),
        ("a", {"href": "#total", "rel": ["noopener", "noreferrer"]}),
    ]


@pytest.mark.parametrize("link", ["https://example.org/a?b=c#d", "HTTP://example.org", "mailto:a@b.c", "#exercise"])
def test_links_lead_to_pages_mail_and_places(link):
    ((_, attributes),) = tags_of(safe_html.clean(f'<a href="{link}">x</a>'))
    assert attributes["href"] == link


@pytest.mark.parametrize("link", ["javascript:1", "data:text/html,x", "file:///etc/passwd", "//example.org", "x.html"])
def test_no_other_link_stays(link):
    ((_, attributes),) = tags_of(safe_html.clean(f'<a href="{link}">x</a>'))
    assert "href" not in attributes


SVG = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">{}</svg>'


def coded(picture: str) -> str:
    """A picture in SVG as an address."""
    return f"{safe_html.SVG_DATA}{base64.b64encode(picture.encode()).decode()}"


@pytest.mark.parametrize("source", [*(f"data:image/{kind};base64,AAAA" for kind in ("png", "jpeg", "gif")), coded(SVG)])
def test_pictures_are_part_of_the_page(source):
    assert tags_of(safe_html.clean(f'<img src="{source}" alt="a figure">')) == [
        ("img", {"src": source, "alt": "a figure"})
    ]


@pytest.mark.parametrize("source", ["https://example.org/x.png", "data:image/webp;base64,AAAA", "data:image/png,x"])
def test_no_other_picture_stays(source):
    assert tags_of(safe_html.clean(f'<img src="{source}">')) == [("img", {})]


def test_an_svg_is_a_picture_and_not_part_of_the_page():
    drawn = new_output("display_data", data={"image/svg+xml": '<svg xmlns="…" onload="x()"><circle r="1"/></svg>'})
    (shown,) = safe_html.outputs([drawn])
    ((name, attributes),) = tags_of(shown.data["text/html"])
    assert name == "img" and attributes["src"].startswith("data:image/svg+xml;base64,")
    assert tags_of(safe_html.clean(shown.data["text/html"])) == [(name, attributes)]


def nested(levels: int, copies: int) -> str:
    """A rectangle that `use` draws copies ** levels times."""
    parts = ['<rect id="a0" width="9" height="9" opacity="0.1"/>']
    for level in range(1, levels):
        parts.append(f'<g id="a{level}">' + f'<use xlink:href="#a{level - 1}" x="1"/>' * copies + "</g>")
    return SVG.format(f"<defs>{''.join(parts)}</defs><use href='#a{levels - 1}'/>")


@pytest.mark.parametrize(
    "picture",
    [
        nested(9, 10),
        nested(3, 2),
        SVG.format('<rect id="a"/>' + '<use xlink:href="#a"/>' * safe_html.limits.SVG),
        SVG.format('<filter id="f"><feGaussianBlur stdDeviation="90"/></filter><rect filter="url(#f)"/>'),
        SVG.format("<style>* { filter: blur(90px); }</style>"),
        SVG.format("<foreignObject/>"),
        SVG.format("<script>1</script>"),
        f'<!DOCTYPE svg [<!ENTITY a "{"b" * 99}">]>{SVG.format("&a;")}',
        "<svg><g></svg>",
    ],
    ids=["nested", "use in a use", "many", "filter", "style", "foreign", "script", "entity", "broken"],
)
def test_a_picture_that_takes_long_to_draw_is_left_out(picture):
    """The first one, of 3 kB, kept Chromium busy for longer than anybody waits."""
    (shown,) = safe_html.outputs([new_output("display_data", data={"image/svg+xml": picture})])
    assert tags_of(shown.data["text/html"]) == [("p", {})] and "is left out" in shown.data["text/html"]
    assert tags_of(safe_html.clean(f'<img src="{coded(picture)}">')) == [("img", {})]


def test_the_pictures_of_figures_stay():
    figure = ranks.Figure(alt="a line")
    axes = figure.subplots()
    axes.plot(range(50), label="$x^2$")
    axes.imshow([[1, 2], [3, 4]])
    axes.legend()
    picture = figure.svg().decode()
    assert "<use" in picture and safe_html.is_drawable(picture)
    assert tags_of(safe_html.clean(figure._repr_html_()))[0][1]["src"].startswith(safe_html.SVG_DATA)


# --- styles ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "style",
    [
        "color: red",
        "color: #0072b2",
        "background-color: rgba(0, 0, 0, 0.5)",
        "width: 750px; max-width: 100%; background: white",  # a figure of `ranks`
        "text-align: right",  # a table in Markdown
        "border: 1px solid #ccc",
        "font-size: 12px; font-weight: bold; font-family: courier new, monospace",
    ],
)
def test_styles_of_tables_and_figures_stay(style):
    assert tags_of(safe_html.clean(f'<div style="{style}">x</div>')) == [("div", {"style": style})]


OTHER_STYLES = [
    "height: 0", "overflow: visible", "float: left", "display: none", "position: fixed", "z-index: 9", "opacity: 0",
    "margin: -99px", "padding: 999px", "line-height: 0", "letter-spacing: -9px", "text-indent: -999px",
    "transform: scale(9)", "direction: rtl", "unicode-bidi: bidi-override", "cursor: wait", "--a: url(x)",
    "font-size: 400px", "font-size: 200%", "font-size: 2em", "font-size: larger", "font: 400px serif",
    "width: 9999px", "width: 200%", "width: -1px", "width: calc(100% + 9px)", "max-width: none",
    "color: red !important", "color: var(--ink)", "color: expression(x)", "border: 900px solid red",
    "background: url(x)", "background: URL('x')", "background: u\\72l(x)", "background: /**/url(x)",
]  # fmt: skip


@pytest.mark.parametrize("style", OTHER_STYLES)
def test_other_styles_go(style):
    assert tags_of(safe_html.clean(f'<div style="{style}">x</div>')) == [("div", {})]
    kept = [("div", {"style": "color: red"})]
    assert tags_of(safe_html.clean(f'<div style="{style}; COLOR : Red">x</div>')) == kept


def test_a_picture_has_bounds():
    fits = {"src": PIXEL, "width": "750", "height": "50%"}
    assert tags_of(safe_html.clean(f'<img src="{PIXEL}" width="750" height="50%">')) == [("img", fits)]
    assert tags_of(safe_html.clean(f'<img src="{PIXEL}" width="9999" height="200%">')) == [("img", {"src": PIXEL})]


# --- what could be read can be read ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "List<T> and Dict<int, str>",
        "</T> and <my-tag> and <detail\u017f>",
        "a<b and c",
        "x<y then",
        "1 < 2 > 0 & 3 ends with <",
        "<script>total = 1</script> after",
        "I write <script> here and more",
        "I write <style> here and more",
        "before <!-- a comment that does not end",
        '<a title="never closed> and more',
        "<svg><text>words</text></svg>",
        "<font color=red>words</font>",
        "<textarea><b>words",
    ],
)
def test_a_tag_that_is_not_allowed_is_text(text):
    shown = safe_html.clean(text)
    assert text_of(shown) == (text if "<b>" not in text else text.replace("<b>", ""))
    assert text_of(safe_html.clean(f"<p>{text.replace('<', '&lt;')}</p>")) == text  # as it is where it is written so


@pytest.mark.parametrize("text", ["List<T> and Dict<int, str>", "I write <script> here", "if a<b and c<d"])
def test_a_tag_in_markdown_that_is_not_allowed_is_text(text):
    assert text_of(safe_html.markdown(text)) == text


def test_stylesheets_and_comments_which_no_browser_shows_go():
    table = "<style scoped>.dataframe td { color: red }</style><table><tr><td>1<!-- one --></td></tr></table>"
    assert safe_html.clean(table) == "<table><tbody><tr><td>1</td></tr></tbody></table>"


@pytest.mark.parametrize("sign", "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\x01\x07")
def test_signs_that_change_what_is_read_become_question_marks(sign):
    assert well_formed(f"a{sign}b") == "a?b"
    assert safe_html.clean(f"<b>a{sign}b&#{ord(sign)};c</b>") == "<b>a?b?c</b>"


def test_writing_from_right_to_left_stays():
    assert well_formed("\u05e9\u05dc\u05d5\u05dd \u06a9\u200c\u0647") == "\u05e9\u05dc\u05d5\u05dd \u06a9\u200c\u0647"


# --- rendered twice, as formgrader does -----------------------------------------------------------------

MARKDOWN = [
    "Some `__init__` and `a*b*c`, *emphasis*, **strong**, \\*signs\\*, a [link](https://example.org/a_b_c) and $a_b$.",
    "```python\nfor x in y:\n\n    print('*a*', [x](y))\n```\n\n    indented\n\n        code\n",
    "# Heading\n\n> quote\n\n1. one\n2. two\n   - three\n\n| a | b |\n|--:|---|\n| 1 | 2 |",
    "<div>\n\n**inside**\n\n</div>\n\nhttps://example.org and <b>html</b>\n\n---\n\nDict<int, str>",
    "$$\\begin{aligned} a &< b \\\\ c &= d \\end{aligned}$$",
]


#: What begins a block of Markdown, behind markup that is left out, so that it begins the line.
BLOCKS = [
    f"{before}{block}"
    for before in ("<!-- -->", "<style></style>", "a&#13;&#13;", "</div>&#13;&#13;")
    for block in (
        '# <span style="color: #fff">07-ex2-square-test</span>', "- x", "+ x", "1. x", "    x", "> x", "---",
        "&#35; x", "<h1>x</h1>",
    )
]  # fmt: skip


@pytest.mark.parametrize("source", [*MARKDOWN, *ATTACKS, *BLOCKS])
def test_a_second_rendering_changes_nothing(source):
    once = safe_html.markdown(source)
    twice = markdown2html(once)
    assert text_of(twice).strip() == text_of(once).strip()
    assert tags_of(twice) == tags_of(once)
    assert not any("id" in attributes for _, attributes in tags_of(twice)), "ids are the page's own"


# --- however much it is ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "markup",
    ["<div>" * 400_000, f"<b {' '.join(f'a{number}=1' for number in range(200_000))}>x</b>", "<a <!--" * 200_000],
    ids=["tags", "attributes", "what does not end"],
)
def test_much_markup_takes_no_minutes_and_is_text(markup):
    started = time.process_time()
    shown = safe_html.clean(markup)
    assert time.process_time() - started < 20
    assert text_of(shown) == markup
