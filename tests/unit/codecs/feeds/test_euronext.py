"""UTP-MD as described: layouts against a table of their own, and byte-exact vectors.

The table below holds the published field lists and is kept apart from the
description: `field@offset:size`, offsets from the message's first byte.
"""

import re
from datetime import date
from decimal import Decimal

import pytest

from feedhandler.codecs import Layout, PacketKind, Price, load_feed

TABLE = """
140 52
    SymbolIndex@4:4 SourceSeqNum@8:4 SourceTime@12:4 QuoteLinkID@16:4 AskPrice@20:4 AskSize@24:4
    BidPrice@28:4 BidSize@32:4 SystemID@36:4 NumberAskOrders@40:2 NumberBidOrders@42:2
    SourceTimeMicroSecs@44:2 TypeOfAskPrice@46:1 TypeOfBidPrice@47:1 QuoteCondition@48:1
    QuoteNumber@49:1 PriceScaleCode@50:1
221 28
    SymbolIndex@4:4 SourceTime@8:4 SourceSeqNum@12:4 OriginalTradeIDNumber@16:4 SystemID@20:4
    SourceTimeMicroSecs@24:2
230 64
    SymbolIndex@4:4 SourceTime@8:4 SourceSeqNum@12:4 Price@16:4 AggregatedVolume@20:4
    Volume@24:4 LinkID@28:4 OrderID@32:4 SystemID@36:4 SourceTimeMicroSecs@40:2
    NumberOrders@42:2 Side@44:1 OrderType@45:1 ActionType@46:1 PriceScaleCode@47:1
    OrderDate@48:4 OrderPriorityDate@52:4 OrderPriorityTime@56:4 OrderPriorityMicroSecs@60:2
    OrderOrigin@62:1
231 16
    SourceTime@4:4 SourceSeqNum@8:4 TradingEngineID@12:2 InstanceID@14:1
    RetransmissionIndicator@15:1
240 64
    SymbolIndex@4:4 SourceTime@8:4 TradeIDNumber@12:4 QuoteLinkID@16:4 SourceSeqNum@20:4
    Price@24:4 Volume@28:4 CumulativeQuantity@32:4 HighestPrice@36:4 LowestPrice@40:4
    VariationLastPrice@44:4 SystemID@48:4 SourceTimeMicroSecs@52:2 TradeCondition@56:4
    TickDirection@60:1 OpeningTradeIndicator@61:1 VariationScaleCode@62:1 PriceScaleCode@63:1
241 44
    SymbolIndex@4:4 SourceTime@8:4 SourceSeqNum@12:4 Price@16:4 HighestPrice@20:4
    LowestPrice@24:4 VariationLastPrice@28:4 SystemID@32:4 SourceTimeMicroSecs@36:2
    TypeOfPrice@38:2 PriceScaleCode@42:1 VariationScaleCode@43:1
245 52
    SymbolIndex@4:4 SourceTime@8:4 SourceSeqNum@12:4 FirstPrice@16:4 LastPrice@20:4
    HighestPrice@24:4 LowestPrice@28:4 CumulativeQuantity@32:4 Variation@36:4 SystemID@40:4
    SourceTimeMicroSecs@44:2 TypeOfLastPrice@46:2 TickDirection@48:1
    InstrumentValuationPrice@49:1 PriceScaleCode@50:1 VariationScaleCode@51:1
247 28
    SymbolIndex@4:4 SourceTime@8:4 SourceSeqNum@12:4 Price@16:4 SystemID@20:4
    SourceTimeMicroSecs@24:2 PriceScaleCode@26:1
505 52
    SymbolIndex@4:4 SourceSeqNum@8:4 SourceTime@12:4 SystemID@16:4 SourceTimeMicroSecs@20:2
    StartDateHalting@24:8 StartTimeHalting@32:6 ProgrammedOpeningTime@38:6
    OrderEntryRejection@44:1 InstrumentState@45:1 InstrumentTradingStatus@46:1 HaltReason@47:1
    ActionAffectingState@48:1 InstrumentStateTCS@49:1 PeriodSide@50:1
516 28
    SourceSeqNum@4:4 SourceTime@8:4 SystemID@12:4 SourceTimeMicroSecs@16:2
    InstrumentGroupCode@18:3 SessionType@22:1 ClassState@24:4
523 961
    SourceSeqNum@4:4 SourceTime@8:4 SystemID@12:4 SourceTimeMicroSecs@16:2
    InstrumentGroupCode@18:3 PriorityIndicator@22:1 TypeOfMessage@23:1 AddressType@24:1
    Title@25:80 Text@105:854
524 21
    SourceSeqNum@4:4 SourceTime@8:4 Side@12:1 Volume@13:4 RFSID@17:4
530 36
    SymbolIndex@4:4 SourceSeqNum@8:4 SourceTime@12:4 IMPrice@16:4 Variation@20:4 SystemID@24:4
    SourceTimeMicroSecs@28:2 PriceScaleCode@30:1 VariationScaleCode@31:1 IMVolume@32:4
530 44
    SymbolIndex@4:4 SourceSeqNum@8:4 SourceTime@12:4 IMPrice@16:4 Variation@20:4 SystemID@24:4
    SourceTimeMicroSecs@28:2 PriceScaleCode@30:1 VariationScaleCode@31:1 IMVolume@32:4
    ImbalanceVolumeSide@36:1 ImbalanceVolume@40:4
537 32
    SymbolIndex@4:4 SourceSeqNum@8:4 SourceTime@12:4 HighCollar@16:4 LowCollar@20:4
    SystemID@24:4 SourceTimeMicroSecs@28:2 HighScaleCode@30:1 LowScaleCode@31:1
539 84
    SourceSeqNum@4:4 SourceTime@8:4 SystemID@12:4 SourceTimeMicroSecs@16:2
    InstrumentGroupCode@18:3 SessionType@21:1 TimePreOpening1@22:6 TimeOpening1@28:6
    TimeClosing1@34:6 TimePreOpening2@40:6 TimeOpening2@46:6 TimeClosing2@52:6
    TimePreOpening3@58:6 TimeOpening3@64:6 TimeClosing3@70:6 EndOfDayTime@76:6
550 8
    Indicator@4:1
551 8
    Indicator@4:1
553 456
    SymbolIndex@4:4 SourceSeqNum@8:4 SourceTime@12:4 LastAdjPrice@16:4 SystemID@20:4
    PrevVolumeTraded@24:4 FixPriceTick@28:4 SourceTimeMicroSecs@32:2 StockExchangeCode@34:2
    TypeOfInstrument@36:2 EventDate@38:8 InstrumentName@46:18 PeriodIndicator@64:1
    TypeOfMarketAdmission@65:1 IssuingCountryCode@66:3 TradingCurrency@69:3
    InstrumentGroupCode@72:3 InstrumentCategory@75:1 InstrumentCode@76:12 DateOfLastTrade@88:8
    UnderlyingRepoISINCode@96:12 RepoExpiryDate@108:8 FirstSettlementDate@116:8
    TypeOfDerivatives@124:1 BICDepositary@125:11 ICB@136:4 MIC@140:4 UnderlyingISINCode@144:12
    DepositaryList@156:25 MainDepositary@181:5 TypeOfCorporateEvent@186:2
    TimeLagEuronextUTC@188:5 TimeLagMiFIDRegUTC@193:5 CFI@198:6 QuantityNotation@204:4
    IndexSetOfVarPriceTick@208:2 MarketFeedCode@210:2 MICList@212:24 IndustryCode@236:4
    FinancialMarketCode@340:3 USIndicators@343:7 PrevDayCapitalTraded@352:8
    NominalMktPrice@360:8 LotSize@368:8 NumberInstrumentCirculating@376:8 SharesOut@384:8
    AuthShares@392:8 RepoIndicator@403:1 LastAdjPriceScaleCode@404:1 TypeOfUnitExp@405:1
    MarketIndicator@406:1 PrevDayCapitalTradedScaleCode@407:1 TaxCode@408:1
    NominalMktPriceScaleCode@409:1 LotSizeScaleCode@410:1 FixPriceTickScaleCode@411:1
    Mnemo@412:5 TradingCode@417:12 StrikePrice@432:4 StrikeCurrency@436:3 StrikeScaleCode@439:1
    CurrencyCoef@440:4 CurrencyCoefScaleCode@444:1 TradingCurrencyIndicator@445:1
    StrikeCurrencyIndicator@446:1
546 52
    SymbolIndex@4:4 SourceTime@8:4 IndexLevel@12:4 ForeRunner@16:4 SessionHigh@20:4
    SessionLow@24:4 PctOfCapitalisation@28:4 VarFromPrevDay@32:4 SystemID@36:4
    SourceTimeMicroSecs@40:2 NumOfSecurities@42:2 IndexCode@44:1 TypeOfLevel@45:1
    IndexLevelScaleCode@46:1 PctScaleCode@47:1 VarScaleCode@48:1 RebroadcastIndicator@49:1
547 80
    SymbolIndex@4:4 SourceTime@8:4 PrelOpeningLevel@12:4 PrelOpeningTime@16:4 OpeningLevel@20:4
    OpeningTime@24:4 ConfirmRefLevel@28:4 ConfirmRefTime@32:4 PctVarPrevClose@36:4
    HighLevel@40:4 HighTime@44:4 LowLevel@48:4 LowTime@52:4 ClosingLevel@56:4 ClosingTime@60:4
    LiquidationTime@64:4 SystemID@68:4 SourceTimeMicroSecs@72:2 TypeOfLevel@74:1
    LevelScaleCode@75:1 VarScaleCode@76:1
548 52
    SymbolIndex@4:4 SourceTime@8:4 InstrWeight@12:4 InstrFactor@16:4 PrevClose@20:4
    SystemID@24:4 SourceTimeMicroSecs@28:2 NumOfComponents@30:2 ISIN@32:12 Mnemo@44:5
    IndexFreq@49:1 PriceScaleCode@50:1 LevelScaleCode@51:1
580 8
    LastSeqNum@4:4
581 8
    LastSeqNum@4:4
"""

#: Control packets: offsets from the end of the packet header.
CONTROLS = """
1 4
    NextSeqNumber@0:4
2 0
10 28
    SourceSeqNum@0:4 SourceID@4:20 Status@24:1 RejectReason@25:1
20 28
    BeginSeqNum@0:4 EndSeqNum@4:4 SourceID@8:20
22 20
    SourceID@0:20
23 28
    SourceSeqNum@0:4 SourceID@4:20 Status@24:1 RejectReason@25:1
24 20
    SourceID@0:20
"""

HEADER = [
    ("PacketLength", 0, 2),
    ("PacketType", 2, 2),
    ("PacketSeqNum", 4, 4),
    ("SendTime", 8, 4),
    ("ServiceID", 12, 2),
    ("DeliveryFlag", 14, 1),
    ("NumberMsgEntries", 15, 1),
]

#: An order update that a receiver of this platform really decoded on 2013-04-15.
ORDER_UPDATE = bytes.fromhex(
    "003e00e60000297800dbe32600002a56000000320000b7210000271000000000000000110000000b00e00005"
    "3232410201332a6f01332a6f0262832600c40000"
)
ORDER_UPDATE_WIRE = {
    "SymbolIndex": 10616,
    "SourceTime": (4 * 3600 + 10) * 1000 + 534,
    "SourceSeqNum": 10838,
    "Price": 50,
    "AggregatedVolume": 46881,
    "Volume": 10000,
    "LinkID": 0,
    "OrderID": 17,
    "SystemID": 11,
    "SourceTimeMicroSecs": 224,
    "NumberOrders": 5,
    "Side": "2",
    "OrderType": "2",
    "ActionType": "A",
    "PriceScaleCode": 2,
    "OrderDate": 20130415,
    "OrderPriorityDate": 20130415,
    "OrderPriorityTime": 40010534,
    "OrderPriorityMicroSecs": 196,
    "OrderOrigin": "",
}
RETRANSMISSION_REQUEST = bytes.fromhex(
    "002c001400000064000000000065000100000064000000785352433100000000000000000000000000000000"
)


def rows(table: str) -> list[tuple[int, int, list[tuple[str, int, int]]]]:
    """(type, size, [(field, offset, size)]) of each entry of a table."""
    found: list[tuple[int, int, list[tuple[str, int, int]]]] = []
    for line in table.strip().splitlines():
        if not line.startswith(" "):
            code, size = map(int, line.split())
            found.append((code, size, []))
        for name, at, size in re.findall(r"(\w+)@(\d+):(\d+)", line):
            found[-1][2].append((name, int(at), int(size)))
    return found


def described(layout: Layout) -> list[tuple[str, int, int]]:
    return [(field.wire, field.at, field.size) for field in layout.named]


feed = load_feed("euronext-utp-md")


def test_every_message_of_the_table_is_described_and_no_other():
    expected = sorted((code, size) for code, size, _ in rows(TABLE))
    assert expected == sorted(
        (layout.code, layout.size) for ways in feed.layouts.values() for layout in ways
    )


@pytest.mark.parametrize("entry", rows(TABLE), ids=lambda e: f"{e[0]}-{e[1]}")
def test_offsets_sizes_and_names_are_those_of_the_table(entry):
    code, size, fields = entry
    assert described(feed.layout(code, size)) == fields


@pytest.mark.parametrize("entry", rows(TABLE), ids=lambda e: f"{e[0]}-{e[1]}")
def test_each_field_is_encoded_where_the_table_says(entry):
    code, size, fields = entry
    layout = feed.layout(code, size)
    blank = bytes(layout.encode({}, {}))
    assert len(blank) == size
    for (_, at, width), field in zip(fields, layout.named, strict=True):
        value = "\xff" * width if field.kind == "c" else -1 if field.kind == "i" else 256**width - 1
        data = bytes(layout.encode({field.name: value}, {}))
        assert data == blank[:at] + b"\xff" * width + blank[at + width :], field.wire


def test_control_packets_are_those_of_the_table():
    expected = {code: (size, fields) for code, size, fields in rows(CONTROLS)}
    assert expected == {
        code: (layout.size, described(layout)) for code, layout in feed.controls.items()
    }


def test_the_packet_header_is_that_of_the_table():
    assert [(f.wire, f.at, f.size) for f in feed.header.named] == HEADER
    assert feed.header.size == 16


def test_the_real_order_update_decodes_to_its_printed_fields():
    record = feed.decode_message(ORDER_UPDATE, day=date(2013, 4, 15))
    assert record.wire() == ORDER_UPDATE_WIRE
    assert record.price == Price(50, 2)
    assert record.price.decimal == Decimal("0.50")
    # 04:00:10.534224 in Paris, which was two hours ahead of UTC.
    assert record.event_time_ns == 1_365_991_210_534_224_000


def test_the_real_order_update_encodes_to_its_bytes():
    fields = {field.name: ORDER_UPDATE_WIRE[field.wire] for field in feed.layout(230).named}
    assert feed.encode_message(230, **fields) == ORDER_UPDATE
    assert feed.encode_message(230, **{**fields, "price": Decimal("0.5")}) == ORDER_UPDATE
    assert feed.encode_message(feed.decode_message(ORDER_UPDATE)) == ORDER_UPDATE


def test_the_retransmission_request_encodes_to_its_bytes():
    body = feed.encode_control(20, begin_seq_num=100, end_seq_num=120, source_id="SRC1")
    packet = feed.encode_packet(
        kind="control", packet_type=20, sequence=100, service=101, count=1, body=body
    )
    assert packet == RETRANSMISSION_REQUEST


def test_the_retransmission_request_decodes_to_its_fields():
    packet = feed.decode_packet(RETRANSMISSION_REQUEST)
    assert packet.kind == PacketKind.CONTROL
    assert packet.service == 101
    assert packet.control.wire() == {"BeginSeqNum": 100, "EndSeqNum": 120, "SourceID": "SRC1"}


@pytest.mark.parametrize(("size", "index"), [(36, 0), (40, 0), (44, 1), (60, 1)])
def test_the_size_chooses_between_the_two_layouts_of_530(size, index):
    data = bytearray(feed.encode_message("indicative_price_imbalance", im_volume=7))
    data = (data + bytes(60))[:size]
    data[0:2] = (size - 2).to_bytes(2, "big")
    record = feed.decode_message(bytes(data))
    assert record.layout is feed.layouts[530][index]
    assert record.im_volume == 7


def test_reference_data_names_a_symbol_by_mnemonic_and_market():
    message = feed.encode_message(553, symbol_index=10616, mnemo="AIRF", mic="XPAR")
    assert feed.references.keys() == {553}
    assert feed.references[553].read(message) == (10616, "AIRF.XPAR")
    assert feed.references[553].read(message[:400]) is None


def test_messages_without_a_symbol_index_have_no_symbol():
    without = {code for code, ways in feed.layouts.items() if not ways[0].symbol}
    assert without == {231, 516, 523, 524, 539, 550, 551, 580, 581}
