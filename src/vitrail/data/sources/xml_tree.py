"""XML annotation files as plain trees with line numbers; entities and document types are refused."""

from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat

from vitrail.errors import DataError
from vitrail.files import read_bytes

LIMIT = 16 << 20  # bytes of a file
_DEEP = 32  # elements inside of one another


@dataclass
class Element:
    """An element: its name, its text, the line that it starts in, and the elements in it."""

    name: str
    line: int
    text: str = ""
    children: list["Element"] = field(default_factory=list)

    def find(self, name: str) -> "Element | None":
        """The first element in it of this name."""
        return next((child for child in self.children if child.name == name), None)

    def word(self, *names: str) -> str:
        """The text of the element that these names lead to; empty if there is none."""
        found: Element | None = self
        for name in names:
            found = None if found is None else found.find(name)
        return "" if found is None else found.text.strip()


def read_xml(path: Path) -> Element:
    """The outermost element of a file; DataError with the line of what is wrong."""
    try:
        data = read_bytes(path, LIMIT)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    parser = expat.ParserCreate()
    outside = Element("", 0)
    stack = [outside]

    def start(name: str, _: dict[str, str]) -> None:
        if len(stack) > _DEEP:
            raise DataError(f"{path}, line {parser.CurrentLineNumber}: more than {_DEEP} elements inside one another")
        element = Element(name, parser.CurrentLineNumber)
        stack[-1].children.append(element)
        stack.append(element)

    def text(part: str) -> None:
        stack[-1].text += part

    def refuse(*_: object) -> None:
        raise DataError(f"{path}, line {parser.CurrentLineNumber}: a document type is not allowed; remove <!DOCTYPE>")

    parser.buffer_text = True
    parser.StartElementHandler, parser.CharacterDataHandler = start, text
    parser.EndElementHandler = lambda _: stack.pop()
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise DataError(f"{path}, line {error.lineno}: not valid XML ({expat.ErrorString(error.code)})") from error
    except (ValueError, LookupError) as error:  # an encoding that Python does not know
        raise DataError(f"{path}, line {parser.CurrentLineNumber}: not valid XML ({error})") from error
    return outside.children[0]
