"""Reading the pages that commands write."""

from __future__ import annotations

import html.parser

_ALONE = {"meta", "br", "wbr"}


class Page(html.parser.HTMLParser):
    """What a page shows, and what it would load; what is opened must be closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(text)
        assert self.open == [], "not closed"

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.loads += [value for name, value in attrs if name in ("src", "href")]
        if tag not in _ALONE:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> closes another"

    def handle_data(self, data):
        self.text += data


def framed_page(element: str) -> str:
    """Returns the page in the frame that a notebook shows."""
    found: list[dict[str, str | None]] = []

    class Frame(Page):
        def handle_starttag(self, tag, attrs):
            super().handle_starttag(tag, attrs)
            found.append(dict(attrs))

    assert Frame(element).tags == ["iframe"]
    page = found[0]["srcdoc"]
    assert page is not None
    return page
