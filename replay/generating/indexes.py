"""Indexes into the generator's tables, as plain numbers: a message's fields, what a session plans.

Fields are in the order of their offsets in `layouts`."""

# Fields of an order update, a quote, a trade and a price update.
(
    O_TIME,
    O_NUMBER,
    O_PRICE,
    O_AGGREGATE,
    O_VOLUME,
    O_ID,
    O_MICROS,
    O_COUNT,
    O_SIDE,
    O_ACTION,
    O_DATE,
    O_PRIORITY_TIME,
    O_PRIORITY_MICROS,
) = range(13)
Q_NUMBER, Q_TIME, Q_ASK, Q_ASK_SIZE, Q_BID, Q_BID_SIZE, Q_ASKS, Q_BIDS, Q_MICROS = range(9)
(
    T_TIME,
    T_ID,
    T_NUMBER,
    T_PRICE,
    T_VOLUME,
    T_TOTAL,
    T_HIGH,
    T_LOW,
    T_VARIATION,
    T_MICROS,
    T_DIRECTION,
    T_FIRST,
) = range(12)
U_TIME, U_NUMBER, U_PRICE, U_HIGH, U_LOW, U_VARIATION, U_MICROS = range(7)
# Fields of an index value.
X_TIME, X_LEVEL, X_HIGH, X_LOW, X_VARIATION, X_MICROS = range(6)

# Kinds of bursts; a session's phases, one after another; channels, the last for all refreshes.
EQUITY, WARRANT, WARRANT_TRADE, INDEX, NOTICE, REFRESH, KINDS = range(7)
RESETS, NAMES, BOOKS, MARKET = range(4)
(
    REFERENCE,
    TRADES,
    QUOTES,
    ORDERS,
    WARRANT_TRADES,
    WARRANT_QUOTES,
    INDICES,
    REFRESHES,
) = range(8)
