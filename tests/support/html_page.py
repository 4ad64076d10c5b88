"""A page as a parser reads it: tags, attributes and text, all closed in order."""

import re
from html.parser import HTMLParser

VOID = {"meta", "img", "br"}


class HtmlPage(HTMLParser):
    """Collects tags and text, and checks that tags close in order and nothing comes from the network."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open
        assert not re.search(r"https?:|//[a-z]|url\(|@import", re.sub(r"base64,[^\"]+", "", text))
        assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in self.tags}

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """The attributes of every tag of a name."""
        return [attributes for name, attributes in self.tags if name == tag]
