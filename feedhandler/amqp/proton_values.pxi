# Values between Python and the engine: text, and what AMQP encodes (AMQP 1.0, part 1).

cdef str _text(const char *value):
    return "" if value == NULL else value.decode("utf-8", "replace")


cdef Py_ssize_t _length(const char *value):
    return 0 if value == NULL else <Py_ssize_t> strlen(value)


cdef bytes _symbols(tuple words):
    """Encode an array of symbols (AMQP 1.0, 1.6.25)."""
    cdef bytes content = b"".join(bytes([len(word)]) + word.encode() for word in words)
    return bytes([0xE0, len(content) + 2, len(words), 0xA3]) + content


cdef bytes _texts(dict values):
    """Encode a map of symbols to strings (AMQP 1.0, 1.6.23)."""
    cdef bytes content = b"".join(
        b"\xb3" + len(each).to_bytes(4, "big") + each if index == 0
        else b"\xb1" + len(each).to_bytes(4, "big") + each
        for pair in values.items() for index, each in enumerate(map(str.encode, pair)))
    return b"\xd1" + (len(content) + 4).to_bytes(4, "big") + (
        2 * len(values)).to_bytes(4, "big") + content


cdef int _put(void *data, bytes encoded) except -1:
    """Decode an encoded value into proton's own form."""
    pn_data_decode(data, encoded, len(encoded))
    return 0


cdef object _value(void *data):
    """Convert a value in proton's own form to Python; None for nothing, and for what cannot be
    converted: deeply nested lists, invalid text, a map's key that is a list."""
    from proton import Data  # decodes what its own library encodes; once a connection or link

    cdef ssize_t size = pn_data_encoded_size(data)
    if size <= 0:
        return None
    encoded = bytearray(size)
    pn_data_encode(data, encoded, size)
    try:
        decoder = Data()
        decoder.decode(bytes(encoded))
        decoder.rewind()
        return decoder.get_object() if decoder.next() else None
    except Exception:  # of many kinds, all caused by the peer's bytes
        return None


cdef int _set_condition(void *condition, str name, str description) except -1:
    """Set the condition with which we end a link or a connection, unless `name` is empty."""
    if name:
        pn_condition_set_name(condition, name.encode())
        pn_condition_set_description(
            condition, description[:DESCRIPTION_CHARS_MAX].encode("ascii", "replace"))
    return 0


cdef tuple _condition(void *condition):
    """Return (name, description) of a condition that the peer sent, ("", "") where it sent none."""
    return _text(pn_condition_get_name(condition)), _text(pn_condition_get_description(condition))
