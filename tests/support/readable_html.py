"""HTML as lines of what people see and can press, for approved texts of pages and notebooks."""

from __future__ import annotations

from html.parser import HTMLParser

__all__ = ["readable_html"]

LINES = {
    *("h1", "h2", "h3", "h4", "p", "li", "dt", "tr", "pre", "label", "form", "nav"),
    *("details", "summary", "figcaption", "table"),
}
CELLS = {"td", "th", "dd"}
HIDDEN = {"head", "svg", "time", "code", "footer", "noscript"}
"""What nobody reads here, or what differs in each run. Of some an attribute is shown."""


def readable_html(text: str) -> str:
    """Return the texts with links as ``[text](address)``, and fields and buttons as tags."""
    parser = _Reader()
    parser.feed(text)
    lines = "".join(parser.shown).splitlines()
    return "\n".join(" ".join(line.split()) for line in lines if line.strip())


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.shown: list[str] = []
        self._hidden = 0
        self._ends: list[str] = []
        """What ends each open link."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if not self._hidden:
            given = {name: value or "" for name, value in attrs}
            if tag in LINES or "id" in given:
                self.shown.append("\n")
            self.shown.append(f" {self._begin(tag, given)} ")
        self._hidden += tag in HIDDEN

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in HIDDEN
        if tag == "a" and not self._hidden:
            self.shown.append(self._ends.pop())

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.shown.append(" ".join(data.split()))

    def _begin(self, tag: str, given: dict[str, str]) -> str:
        if tag == "a":
            kinds = given.get("class", "").split()
            kinds += ["current"] if "aria-current" in given else []
            self._ends.append(f"]({' '.join([given['href'], *kinds])})")
            return "["
        if tag in ("input", "select", "option", "button"):
            return self._field(tag, given)
        if tag in CELLS:
            return "|"
        if tag in HIDDEN:
            label = given.get("aria-label", given.get("title", ""))
            return {"svg": f"({label})", "time": "TIME", "code": "CODE"}.get(tag, "")
        return f"#{given['id']}" if "id" in given else ""

    def _field(self, tag: str, given: dict[str, str]) -> str:
        if given.get("name") == "csrf":
            given = {**given, "value": "SECRET"}
        names = ("type", "name", "value", "class", "checked", "selected", "required")
        words = [
            f"{name}={given[name]}" if given[name] else name for name in names if name in given
        ]
        return f"<{' '.join([tag, *words])}>"
