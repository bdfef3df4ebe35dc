from typing_extensions import Buffer

TAG_BYTES: int
WHOLE_PACKET: int
QUALITY_NOTE: int
SNAPSHOT_BIT: int
BLOCK_SHIFT: int
CONTENT_PACKET: str
CONTENT_BATCH: str
CONTENT_MESSAGE: str
CONTENT_QUALITY: str
RECEIVED_ANNOTATION: bytes
SEND_TIME_ANNOTATION: bytes
BODY_HEAD: bytes

class Template:
    key: str
    content: str
    head: bytes
    size: int
    tag_at: int
    stamp_at: int
    sent_at: int
    sequence_at: int
    def __init__(
        self, key: str, content: str, prefix: bytes, stamped: bool = False, timed: bool = False
    ) -> None: ...

class Frame:
    memory: bytearray
    template: Template | None
    used: int
    def __init__(self, capacity: int) -> None: ...
    def room(self) -> int: ...
    def begin(self, template: Template, sequence: int, number: int, received_ns: int) -> int: ...
    def tell_sent(self, send_time: int) -> int: ...
    def append(self, source: Buffer, start: int, size: int) -> int: ...
    def finish(self, group_sequence: int) -> int: ...
    def number(self, group_sequence: int) -> int: ...
    def snapshot(self) -> bytes: ...

class Reader:
    tag_at: int
    tag_size: int
    subject_at: int
    subject_size: int
    content_at: int
    content_size: int
    body_at: int
    body_size: int
    group_sequence: int
    received_ns: int
    send_time: int
    def parse(self, data: Buffer, start: int, end: int) -> bool: ...

def value_end(data: Buffer, at: int, end: int, depth: int) -> int: ...
def read_uint(data: Buffer, at: int, size: int) -> int: ...
def write_uint(data: Buffer, at: int, size: int, value: int) -> int: ...
def copy(target: Buffer, at: int, source: Buffer, start: int, size: int) -> int: ...
