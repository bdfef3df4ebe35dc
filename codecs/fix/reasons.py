"""Reasons to reject a FIX message, as an enumeration and as plain numbers.

The first ones are the framing's, which checks the envelope and the header; the later ones the
index's, which checks every field. `REJECT_TEXT` has the text of each, for counters and reports.
"""

from enum import IntEnum


class FixReject(IntEnum):
    """The reasons to reject a FIX message; 0 where nothing is wrong."""

    FINE = 0
    TRUNCATED = 1
    NO_BEGIN_STRING = 2
    NO_BODY_LENGTH = 3
    BODY_LENGTH_NOT_NUMBER = 4
    BODY_LENGTH_TOO_SHORT = 5
    BODY_LENGTH_TOO_LONG = 6
    BODY_LENGTH_BEYOND = 7
    MESSAGE_TOO_LONG = 8
    CHECKSUM_MISSING = 9
    CHECKSUM_NOT_DIGITS = 10
    CHECKSUM_WRONG = 11
    NO_SOH = 12
    NO_MESSAGE_TYPE = 13
    TAG_NOT_NUMBER = 14
    TAG_ZERO_LED = 15
    TAG_TOO_LONG = 16
    EMPTY_VALUE = 17
    FIELD_ORDER = 18
    DUPLICATE_HEADER_FIELD = 19
    DATA_LENGTH_WRONG = 20
    SEQUENCE_MISSING = 21
    SEQUENCE_NOT_NUMBER = 22
    SEQUENCE_TOO_LARGE = 23
    FLAG_WRONG = 24
    NEW_SEQUENCE_MISSING = 25
    NO_MESSAGES = 26
    UNKNOWN_TYPE = 27
    UNKNOWN_TAG = 28
    TAG_NOT_OF_MESSAGE = 29
    GROUP_COUNT_WRONG = 30
    DELIMITER_MISSING = 31
    REPEATED_TAG = 32
    VALUE_TYPE_WRONG = 33
    VALUE_NOT_LISTED = 34
    REQUIRED_MISSING = 35
    NESTING_TOO_DEEP = 36
    INDEX_FULL = 37


REJECT_TEXT: dict[FixReject, str] = {
    FixReject.FINE: "nothing wrong",
    FixReject.TRUNCATED: "the bytes end within BeginString (8) or BodyLength (9)",
    FixReject.NO_BEGIN_STRING: "the message does not begin with BeginString, 8=FIX",
    FixReject.NO_BODY_LENGTH: "the second field is not BodyLength (9)",
    FixReject.BODY_LENGTH_NOT_NUMBER: "BodyLength (9) is not a number",
    FixReject.BODY_LENGTH_TOO_SHORT: "BodyLength (9) ends before the message does",
    FixReject.BODY_LENGTH_TOO_LONG: "BodyLength (9) reaches past the message's CheckSum (10)",
    FixReject.BODY_LENGTH_BEYOND: "BodyLength (9) reaches past the bytes that are there",
    FixReject.MESSAGE_TOO_LONG: "the message is longer than the maximum",
    FixReject.CHECKSUM_MISSING: "no CheckSum (10) ends the message",
    FixReject.CHECKSUM_NOT_DIGITS: "CheckSum (10) is not three digits",
    FixReject.CHECKSUM_WRONG: "CheckSum (10) is not the sum of the message's bytes",
    FixReject.NO_SOH: "the field before CheckSum (10) does not end with SOH",
    FixReject.NO_MESSAGE_TYPE: "the third field is not MsgType (35)",
    FixReject.TAG_NOT_NUMBER: "a tag is not a number followed by an equals sign",
    FixReject.TAG_ZERO_LED: "a tag begins with zero",
    FixReject.TAG_TOO_LONG: "a tag has more digits than a tag can have",
    FixReject.EMPTY_VALUE: "a field has no value",
    FixReject.FIELD_ORDER: "a field of the header or the trailer is outside of its part",
    FixReject.DUPLICATE_HEADER_FIELD: "a header field comes twice",
    FixReject.DATA_LENGTH_WRONG: "a data field does not follow its length, or does not fit it",
    FixReject.SEQUENCE_MISSING: "MsgSeqNum (34) is not in the header",
    FixReject.SEQUENCE_NOT_NUMBER: "a sequence number is not a number",
    FixReject.SEQUENCE_TOO_LARGE: "a sequence number is above 18446744073709551614",
    FixReject.FLAG_WRONG: "a flag (43, 123, 141) is neither Y nor N",
    FixReject.NEW_SEQUENCE_MISSING: "a SequenceReset has no NewSeqNo (36)",
    FixReject.NO_MESSAGES: "there are no bytes at all",
    FixReject.UNKNOWN_TYPE: "the dictionary does not know the message type",
    FixReject.UNKNOWN_TAG: "the dictionary does not know the tag",
    FixReject.TAG_NOT_OF_MESSAGE: "the tag does not belong to this type of message, or not here",
    FixReject.GROUP_COUNT_WRONG: "a repeating group has not the number of entries it names",
    FixReject.DELIMITER_MISSING: "an entry of a repeating group does not begin with its delimiter",
    FixReject.REPEATED_TAG: "a tag comes twice in one message or one entry of a group",
    FixReject.VALUE_TYPE_WRONG: "a value is not of its field's type",
    FixReject.VALUE_NOT_LISTED: "a value is not one that the dictionary lists for its field",
    FixReject.REQUIRED_MISSING: "a field that the message must have is missing",
    FixReject.NESTING_TOO_DEEP: "repeating groups are nested deeper than the index follows",
    FixReject.INDEX_FULL: "the message has more fields or entries than the index has room for",
}

# The same as plain numbers, for compiled code.
(
    FINE,
    TRUNCATED,
    NO_BEGIN_STRING,
    NO_BODY_LENGTH,
    BODY_LENGTH_NOT_NUMBER,
    BODY_LENGTH_TOO_SHORT,
    BODY_LENGTH_TOO_LONG,
    BODY_LENGTH_BEYOND,
    MESSAGE_TOO_LONG,
    CHECKSUM_MISSING,
    CHECKSUM_NOT_DIGITS,
    CHECKSUM_WRONG,
    NO_SOH,
    NO_MESSAGE_TYPE,
    TAG_NOT_NUMBER,
    TAG_ZERO_LED,
    TAG_TOO_LONG,
    EMPTY_VALUE,
    FIELD_ORDER,
    DUPLICATE_HEADER_FIELD,
    DATA_LENGTH_WRONG,
    SEQUENCE_MISSING,
    SEQUENCE_NOT_NUMBER,
    SEQUENCE_TOO_LARGE,
    FLAG_WRONG,
    NEW_SEQUENCE_MISSING,
    NO_MESSAGES,
    UNKNOWN_TYPE,
    UNKNOWN_TAG,
    TAG_NOT_OF_MESSAGE,
    GROUP_COUNT_WRONG,
    DELIMITER_MISSING,
    REPEATED_TAG,
    VALUE_TYPE_WRONG,
    VALUE_NOT_LISTED,
    REQUIRED_MISSING,
    NESTING_TOO_DEEP,
    INDEX_FULL,
) = (int(reject) for reject in FixReject)
#: The length of an array of counters by reason.
REJECT_COUNT = len(FixReject)
