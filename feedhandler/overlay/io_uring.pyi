from feedhandler.overlay.port import Port

ENTRIES: int

class RingPort(Port):
    def close(self) -> None: ...

def refusal() -> str: ...
