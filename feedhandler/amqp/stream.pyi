from feedhandler.amqp.history import History
from feedhandler.amqp.outlet import Outlet
from feedhandler.histogram import Histogram
from feedhandler.retrans.store import PacketStore

class Route:
    key: str
    def __init__(
        self,
        key: str,
        prefix: bytes,
        singles: tuple[Outlet, ...],
        thinned: tuple[Outlet, ...],
        timed: bool,
    ) -> None: ...

class Stream:
    index: int
    service: int
    key: str
    prefix: bytes
    whole: list[Outlet]
    fine: list[Outlet]
    concerned: list[Outlet]
    store: PacketStore | None
    history: History | None
    closed: bool
    packets: int
    messages: int
    next_sequence: int
    latency: Histogram
    def __init__(
        self, index: int, service: int, key: str, prefix: bytes, symbols_max: int
    ) -> None: ...
    def set_prefix(self, prefix: bytes) -> None: ...
    def forget_routes(self) -> None: ...
    def forget_word(self, word: str) -> None: ...
    def keep_route(self, symbol: int, words: list[str], route: Route) -> bool: ...
    def candidates(self, words: list[str]) -> list[Outlet]: ...
    def admit(self, outlet: Outlet) -> None: ...
    def withhold(self, outlet: Outlet) -> None: ...
    def remember(self, history_bytes: int) -> None: ...
    def close(self) -> None: ...
    def open(self, first: int) -> None: ...
    @property
    def past(self) -> Stream: ...
    @property
    def words(self) -> list[str]: ...
