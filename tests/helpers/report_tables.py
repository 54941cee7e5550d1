"""The tables of the page that `autograder report` makes, as text."""

from bs4 import BeautifulSoup


def rows_of_table(page: BeautifulSoup, caption: str, number: int = 0) -> list[list[str]]:
    """The rows below the head of a table, by the first words of its caption: of several, this one. [] if there is none.

    All tables whose captions begin so must have the same one.
    """
    tables = [table for table in page.find_all("table") if table.caption.get_text().startswith(caption)]
    assert len({table.caption.get_text() for table in tables}) < 2, caption
    rows = tables[number].find_all("tr")[1:] if tables else []
    return [[" ".join(cell.get_text(" ").split()) for cell in row.find_all(["td", "th"])] for row in rows]
