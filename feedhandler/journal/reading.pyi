import msgspec

from feedhandler.journal.block import Block
from feedhandler.journal.files import Files

class Item(msgspec.Struct, frozen=True, gc=False):
    id: int
    content: bytes

class SegmentReader:
    def __init__(self, files: Files) -> None: ...
    def content(self, block: Block, number: int) -> bytes | None: ...
    def items(self, block: Block, numbers: list[int]) -> list[Item]: ...
