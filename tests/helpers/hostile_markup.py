"""Markup that wants to run something, to fetch something or to cover the page, and a look at what is left of it."""

from __future__ import annotations

import html.parser
import re

from autograder.grade.pages.formulas import ATTRIBUTES, CLASSES, ELEMENTS

#: What a script would do that ran, and where a request would go.
PLANTED = "document.title='planted'"
ELSEWHERE = "http://planted.invalid"

ATTACKS = [
    f"<script>{PLANTED}</script>",
    f'<img src=x onerror="{PLANTED}">',
    f'<svg onload="{PLANTED}"><a xlink:href="javascript:{PLANTED}">x</a></svg>',
    f'<a href="javascript:{PLANTED}">press</a>',
    f'<a href="  jAvA\tscript:{PLANTED}">press</a>',
    f'<iframe srcdoc="<script>parent.{PLANTED}</script>"></iframe>',
    f'<details open ontoggle="{PLANTED}">x</details>',
    f'<body onload="{PLANTED}"><style>@import "{ELSEWHERE}/x.css";</style>',
    f'<img src="{ELSEWHERE}/x.png"><link rel="stylesheet" href="{ELSEWHERE}/x.css">',
    f'<div style="background: url({ELSEWHERE}/y.png)">x</div>',
    f'<meta http-equiv="refresh" content="0; url={ELSEWHERE}/">',
    f"[press](javascript:{PLANTED}) ![x]({ELSEWHERE}/z.png) ![x](attachment:none.png)",
    f"`[press](javascript:{PLANTED})`",
    f"</pre></main></title><script>{PLANTED}</script>",
    # What one parser takes for text and another for a tag.
    f'<math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;img src=x onerror={PLANTED}&gt;">',
    f'<svg></p><style><a id="</style><img src=x onerror={PLANTED}>">',
    f'<noscript><p title="</noscript><img src=x onerror={PLANTED}>">',
    f"<scr<style></style>ipt>{PLANTED}</script>",
    f"<!--><img src=x onerror={PLANTED}>-->",
    f'<a title="`" href="#"><b title="` &lt;img src=x onerror={PLANTED}&gt;">x</b></a>',
    f'<b title="x&#10;&#10;&lt;script&gt;{PLANTED}&lt;/script&gt;">x</b>',
    # Links and pictures that are not what they seem.
    f'<a href="data:text/html,<script>{PLANTED}</script>">press</a><a href="java&#10;script:{PLANTED}">press</a>',
    f'<img src="data:text/html;base64,AAAA"><img src="//planted.invalid/x.png" srcset="{ELSEWHERE}/x.png 2x">',
    f'<table background="{ELSEWHERE}/x.png"><tr><td background="{ELSEWHERE}/y.png">x</table>',
    f'<video poster="{ELSEWHERE}/x.png"><source src="{ELSEWHERE}/x.mp4"></video><input type=image src="{ELSEWHERE}/x">',
    # Styles that fetch.
    f'<div style="background:u\\72l({ELSEWHERE}/x)">x</div>',
    f"<div style=\"color:red; background:image-set('{ELSEWHERE}/y' 1x)\">x</div>",
    f'<ul style="list-style: url({ELSEWHERE}/x)"><li style="cursor:url({ELSEWHERE}/y),auto">x</ul>',
    f"<div style=\"font-family: x; src: url({ELSEWHERE}/x); }} @import '{ELSEWHERE}/y.css'; {{\">x</div>",
]

#: What a page has and a submission may not plant.
ACTS = {
    "applet", "audio", "base", "embed", "form", "frame", "iframe", "input", "link", "math", "noscript", "object",
    "script", "source", "svg", "template", "textarea", "video",
}  # fmt: skip
NAMES = {"action", "background", "formaction", "ping", "poster", "srcdoc", "srcset"}


class Harmful(html.parser.HTMLParser):
    """Collects what a page would run or fetch. formulas: MathML may be there, of our own elements alone."""

    def __init__(self, formulas: bool = False):
        super().__init__()
        self.found: list = []
        self.formulas, self.depth = formulas, 0

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.depth += tag == "math"
        if tag in ACTS and not (self.formulas and tag == "math"):
            self.found.append(tag)
        strange = [(n, v) for n, v in attributes if n not in ATTRIBUTES and not (n == "class" and v in CLASSES)]
        if self.depth and (tag not in ELEMENTS or strange):
            self.found.append((tag, attributes))
        for name, value in attributes:
            value = re.sub(r"\s", "", (value or "").lower())
            if name.startswith("on") or name in NAMES:
                self.found.append((tag, name))
            if name in ("href", "xlink:href") and not value.startswith(("#", "http://", "https://", "mailto:")):
                self.found.append((tag, name, value))
            if name == "src" and not value.startswith("data:image/"):
                self.found.append((tag, name, value))
            if name == "style" and re.search(r"url|image|\\|@", value):
                self.found.append((tag, name, value))
            if tag == "meta" and (name, value) == ("http-equiv", "refresh"):
                self.found.append((tag, value))

    def handle_endtag(self, tag: str) -> None:
        self.depth -= tag == "math"


def assert_harmless(page: str, formulas: bool = False) -> None:
    """Nothing on the page would run or fetch. formulas: it may hold MathML."""
    parser = Harmful(formulas)
    parser.feed(page)
    assert not parser.found


#: A picture of one pixel.
PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="
#: Outputs that want to cover what is above or below them.
COVERS = {
    "no height": '<div style="height:0; overflow:visible"><div style="background:red; font-size:400px">X</div></div>',
    "a fixed place": '<div style="position:fixed; inset:0; z-index:99; background:red">X</div>',
    "a place below": '<div style="position:relative; top:60px; height:900px; background:red">X</div>',
    "a margin": '<div style="position:relative; margin-top:-300px; height:900px; background:red">X</div>',
    "a large picture": f'<p style="height:0"><img src="{PIXEL}" style="max-width:none; width:999px; height:999px"></p>',
    "large letters": '<span style="font-size:400px; line-height:0; background:red">X</span>',
    "a change of scale": '<div style="transform:scale(90); background:red">X</div>',
}
