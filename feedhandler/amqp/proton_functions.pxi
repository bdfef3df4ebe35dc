# The functions of proton's C library, by pointers taken from the extension that the
# `python-qpid-proton` package ships. Included by `proton.pyx`, which says why.

ctypedef struct Bytes:
    size_t size
    const char *start

# One typedef a shape of function; the names below say which proton function has it.
ctypedef void *(*make_t)() noexcept nogil
ctypedef void (*on_t)(void *) noexcept nogil
ctypedef void (*on_int_t)(void *, int) noexcept nogil
ctypedef void (*on_bool_t)(void *, bint) noexcept nogil
ctypedef int (*on_u16_int_t)(void *, uint16_t) noexcept nogil
ctypedef void (*on_u32_t)(void *, uint32_t) noexcept nogil
ctypedef void (*on_size_t)(void *, size_t) noexcept nogil
ctypedef void (*on_u64_t)(void *, uint64_t) noexcept nogil
ctypedef void (*on_text_t)(void *, const char *) noexcept nogil
ctypedef int (*on_text_int_t)(void *, const char *) noexcept nogil
ctypedef void (*on_pointer_t)(void *, void *) noexcept nogil
ctypedef int (*on_pointer_int_t)(void *, void *) noexcept nogil
ctypedef void *(*of_t)(void *) noexcept nogil
ctypedef void *(*of_text_t)(void *, const char *) noexcept nogil
ctypedef int (*int_of_t)(void *) noexcept nogil
ctypedef uint32_t (*u32_of_t)(void *) noexcept nogil
ctypedef unsigned char (*bool_of_t)(void *) noexcept nogil  # C's bool: the other bits are any
ctypedef size_t (*size_of_t)(void *) noexcept nogil
ctypedef ssize_t (*ssize_of_t)(void *) noexcept nogil
ctypedef uint64_t (*u64_of_t)(void *) noexcept nogil
ctypedef const char *(*text_of_t)(void *) noexcept nogil
ctypedef int64_t (*tick_t)(void *, int64_t) noexcept nogil
ctypedef int (*process_t)(void *, size_t) noexcept nogil
ctypedef void *(*delivery_t)(void *, Bytes) noexcept nogil
ctypedef int (*on_bytes_t)(void *, Bytes) noexcept nogil
ctypedef ssize_t (*decode_t)(void *, const char *, size_t) noexcept nogil
ctypedef Bytes (*tag_of_t)(void *) noexcept nogil
ctypedef ssize_t (*send_t)(void *, const char *, size_t) noexcept nogil
ctypedef ssize_t (*recv_t)(void *, char *, size_t) noexcept nogil
ctypedef void (*on_masks_t)(void *, unsigned short, unsigned short) noexcept nogil
ctypedef void (*sink_t)(intptr_t, int, int, const char *) noexcept nogil
ctypedef void (*on_sink_t)(void *, sink_t, intptr_t) noexcept nogil
ctypedef void (*update_t)(void *, unsigned long) noexcept nogil
ctypedef unsigned long (*state_t)(void *) noexcept nogil

_library = ctypes.CDLL(cproton_ffi.__file__)


cdef void *_function(str name) except NULL:
    """Return the address of proton's C function `name`. Raises FeedhandlerError where it is
    missing."""
    try:
        function = getattr(_library, name)
    except AttributeError:
        raise FeedhandlerError(
            f"this build of python-qpid-proton does not export {name}",
            "reinstall it from source: pip install --no-binary :all: python-qpid-proton",
        ) from None
    return <void *> <uintptr_t> ctypes.cast(function, ctypes.c_void_p).value


cdef of_t pn_incref = <of_t> _function("pn_incref")
cdef int_of_t pn_decref = <int_of_t> _function("pn_decref")
cdef make_t pn_connection = <make_t> _function("pn_connection")
cdef on_t pn_connection_free = <on_t> _function("pn_connection_free")
cdef on_pointer_t pn_connection_collect = <on_pointer_t> _function("pn_connection_collect")
cdef on_t pn_connection_open = <on_t> _function("pn_connection_open")
cdef int_of_t pn_connection_state = <int_of_t> _function("pn_connection_state")
cdef on_t pn_connection_close = <on_t> _function("pn_connection_close")
cdef on_text_t pn_connection_set_container = <on_text_t> _function("pn_connection_set_container")
cdef on_text_t pn_connection_set_hostname = <on_text_t> _function("pn_connection_set_hostname")
cdef on_text_t pn_connection_set_user = <on_text_t> _function("pn_connection_set_user")
cdef on_text_t pn_connection_set_password = <on_text_t> _function("pn_connection_set_password")
cdef of_t pn_connection_properties = <of_t> _function("pn_connection_properties")
cdef of_t pn_connection_offered_capabilities = (
    <of_t> _function("pn_connection_offered_capabilities"))
cdef of_t pn_connection_remote_properties = <of_t> _function("pn_connection_remote_properties")
cdef of_t pn_connection_condition = <of_t> _function("pn_connection_condition")
cdef of_t pn_connection_remote_condition = <of_t> _function("pn_connection_remote_condition")
cdef make_t pn_transport = <make_t> _function("pn_transport")
cdef on_t pn_transport_free = <on_t> _function("pn_transport_free")
cdef on_t pn_transport_set_server = <on_t> _function("pn_transport_set_server")
cdef on_bool_t pn_transport_require_auth = <on_bool_t> _function("pn_transport_require_auth")
cdef on_pointer_int_t pn_transport_bind = <on_pointer_int_t> _function("pn_transport_bind")
cdef int_of_t pn_transport_unbind = <int_of_t> _function("pn_transport_unbind")
cdef u32_of_t pn_transport_get_remote_max_frame = (
    <u32_of_t> _function("pn_transport_get_remote_max_frame"))
cdef on_u16_int_t pn_transport_set_channel_max = <on_u16_int_t> _function("pn_transport_set_channel_max")
cdef on_u32_t pn_transport_set_max_frame = <on_u32_t> _function("pn_transport_set_max_frame")
cdef on_u32_t pn_transport_set_idle_timeout = <on_u32_t> _function("pn_transport_set_idle_timeout")
cdef ssize_of_t pn_transport_capacity = <ssize_of_t> _function("pn_transport_capacity")
cdef of_t pn_transport_tail = <of_t> _function("pn_transport_tail")
cdef process_t pn_transport_process = <process_t> _function("pn_transport_process")
cdef int_of_t pn_transport_close_tail = <int_of_t> _function("pn_transport_close_tail")
cdef ssize_of_t pn_transport_pending = <ssize_of_t> _function("pn_transport_pending")
cdef text_of_t pn_transport_head = <text_of_t> _function("pn_transport_head")
cdef on_size_t pn_transport_pop = <on_size_t> _function("pn_transport_pop")
cdef int_of_t pn_transport_close_head = <int_of_t> _function("pn_transport_close_head")
cdef bool_of_t pn_transport_closed = <bool_of_t> _function("pn_transport_closed")
cdef tick_t pn_transport_tick = <tick_t> _function("pn_transport_tick")
cdef u64_of_t pn_transport_get_frames_input = (
    <u64_of_t> _function("pn_transport_get_frames_input"))
cdef of_t pn_transport_condition = <of_t> _function("pn_transport_condition")
cdef of_t pn_sasl = <of_t> _function("pn_sasl")
cdef on_text_t pn_sasl_allowed_mechs = <on_text_t> _function("pn_sasl_allowed_mechs")
cdef on_bool_t pn_sasl_set_allow_insecure_mechs = <on_bool_t> _function("pn_sasl_set_allow_insecure_mechs")
cdef make_t pn_collector = <make_t> _function("pn_collector")
cdef on_t pn_collector_free = <on_t> _function("pn_collector_free")
cdef on_t pn_collector_release = <on_t> _function("pn_collector_release")
cdef of_t pn_collector_peek = <of_t> _function("pn_collector_peek")
cdef bool_of_t pn_collector_pop = <bool_of_t> _function("pn_collector_pop")
cdef int_of_t pn_event_type = <int_of_t> _function("pn_event_type")
cdef of_t pn_event_link = <of_t> _function("pn_event_link")
cdef of_t pn_event_session = <of_t> _function("pn_event_session")
cdef of_t pn_event_delivery = <of_t> _function("pn_event_delivery")
cdef of_t pn_session = <of_t> _function("pn_session")
cdef on_t pn_session_open = <on_t> _function("pn_session_open")
cdef on_t pn_session_close = <on_t> _function("pn_session_close")
cdef on_t pn_session_free = <on_t> _function("pn_session_free")
cdef size_of_t pn_session_outgoing_bytes = <size_of_t> _function("pn_session_outgoing_bytes")
cdef of_t pn_session_remote_condition = <of_t> _function("pn_session_remote_condition")
cdef of_text_t pn_receiver = <of_text_t> _function("pn_receiver")
cdef of_text_t pn_sender = <of_text_t> _function("pn_sender")
cdef on_t pn_link_open = <on_t> _function("pn_link_open")
cdef on_t pn_link_close = <on_t> _function("pn_link_close")
cdef on_t pn_link_free = <on_t> _function("pn_link_free")
cdef text_of_t pn_link_name = <text_of_t> _function("pn_link_name")
cdef of_t pn_link_session = <of_t> _function("pn_link_session")
cdef bool_of_t pn_link_is_sender = <bool_of_t> _function("pn_link_is_sender")
cdef of_t pn_link_source = <of_t> _function("pn_link_source")
cdef of_t pn_link_target = <of_t> _function("pn_link_target")
cdef of_t pn_link_remote_source = <of_t> _function("pn_link_remote_source")
cdef of_t pn_link_remote_target = <of_t> _function("pn_link_remote_target")
cdef of_t pn_link_condition = <of_t> _function("pn_link_condition")
cdef of_t pn_link_remote_condition = <of_t> _function("pn_link_remote_condition")
cdef on_int_t pn_link_set_snd_settle_mode = <on_int_t> _function("pn_link_set_snd_settle_mode")
cdef on_int_t pn_link_set_rcv_settle_mode = <on_int_t> _function("pn_link_set_rcv_settle_mode")
cdef int_of_t pn_link_remote_snd_settle_mode = <int_of_t> _function("pn_link_remote_snd_settle_mode")
cdef on_u64_t pn_link_set_max_message_size = <on_u64_t> _function("pn_link_set_max_message_size")
cdef of_t pn_link_get_context = <of_t> _function("pn_link_get_context")
cdef on_pointer_t pn_link_set_context = <on_pointer_t> _function("pn_link_set_context")
cdef int_of_t pn_link_credit = <int_of_t> _function("pn_link_credit")
cdef int_of_t pn_link_remote_credit = <int_of_t> _function("pn_link_remote_credit")
cdef bool_of_t pn_link_get_drain = <bool_of_t> _function("pn_link_get_drain")
cdef on_int_t pn_link_drain = <on_int_t> _function("pn_link_drain")
cdef int_of_t pn_link_drained = <int_of_t> _function("pn_link_drained")
cdef on_int_t pn_link_flow = <on_int_t> _function("pn_link_flow")
cdef send_t pn_link_send = <send_t> _function("pn_link_send")
cdef recv_t pn_link_recv = <recv_t> _function("pn_link_recv")
cdef bool_of_t pn_link_advance = <bool_of_t> _function("pn_link_advance")
cdef of_t pn_link_current = <of_t> _function("pn_link_current")
cdef text_of_t pn_terminus_get_address = <text_of_t> _function("pn_terminus_get_address")
cdef on_text_int_t pn_terminus_set_address = <on_text_int_t> _function("pn_terminus_set_address")
cdef on_pointer_int_t pn_terminus_copy = <on_pointer_int_t> _function("pn_terminus_copy")
cdef int_of_t pn_terminus_get_type = <int_of_t> _function("pn_terminus_get_type")
cdef on_int_t pn_terminus_set_type = <on_int_t> _function("pn_terminus_set_type")
cdef on_int_t pn_terminus_set_durability = <on_int_t> _function("pn_terminus_set_durability")
cdef bool_of_t pn_terminus_is_dynamic = <bool_of_t> _function("pn_terminus_is_dynamic")
cdef on_u32_t pn_terminus_set_timeout = <on_u32_t> _function("pn_terminus_set_timeout")
cdef on_bool_t pn_terminus_set_dynamic = <on_bool_t> _function("pn_terminus_set_dynamic")
cdef int_of_t pn_terminus_get_distribution_mode = (
    <int_of_t> _function("pn_terminus_get_distribution_mode"))
cdef of_t pn_terminus_filter = <of_t> _function("pn_terminus_filter")
cdef of_t pn_terminus_capabilities = <of_t> _function("pn_terminus_capabilities")
cdef of_t pn_terminus_properties = <of_t> _function("pn_terminus_properties")
cdef on_bytes_t pn_data_put_symbol = <on_bytes_t> _function("pn_data_put_symbol")
cdef of_t pn_delivery_get_context = <of_t> _function("pn_delivery_get_context")
cdef on_pointer_t pn_delivery_set_context = <on_pointer_t> _function("pn_delivery_set_context")
cdef of_t pn_transport_logger = <of_t> _function("pn_transport_logger")
cdef on_masks_t pn_logger_reset_mask = <on_masks_t> _function("pn_logger_reset_mask")
cdef on_sink_t pn_logger_set_log_sink = <on_sink_t> _function("pn_logger_set_log_sink")
cdef on_t pn_data_clear = <on_t> _function("pn_data_clear")
cdef int_of_t pn_link_remote_rcv_settle_mode = (
    <int_of_t> _function("pn_link_remote_rcv_settle_mode"))
cdef of_t pn_terminus_outcomes = <of_t> _function("pn_terminus_outcomes")
cdef decode_t pn_data_decode = <decode_t> _function("pn_data_decode")
cdef delivery_t pn_delivery = <delivery_t> _function("pn_delivery")
cdef tag_of_t pn_delivery_tag = <tag_of_t> _function("pn_delivery_tag")
cdef of_t pn_delivery_remote = <of_t> _function("pn_delivery_remote")
cdef on_bool_t pn_disposition_set_failed = <on_bool_t> _function("pn_disposition_set_failed")
cdef of_t pn_disposition_data = <of_t> _function("pn_disposition_data")
cdef of_t pn_disposition_condition = <of_t> _function("pn_disposition_condition")
cdef bool_of_t pn_disposition_is_undeliverable = <bool_of_t> _function("pn_disposition_is_undeliverable")
cdef bool_of_t pn_disposition_is_failed = <bool_of_t> _function("pn_disposition_is_failed")
cdef of_t pn_delivery_local = <of_t> _function("pn_delivery_local")
cdef recv_t pn_data_encode = <recv_t> _function("pn_data_encode")
cdef ssize_of_t pn_data_encoded_size = <ssize_of_t> _function("pn_data_encoded_size")
cdef on_t pn_delivery_settle = <on_t> _function("pn_delivery_settle")
cdef of_t pn_delivery_link = <of_t> _function("pn_delivery_link")
cdef bool_of_t pn_delivery_readable = <bool_of_t> _function("pn_delivery_readable")
cdef bool_of_t pn_delivery_partial = <bool_of_t> _function("pn_delivery_partial")
cdef bool_of_t pn_delivery_aborted = <bool_of_t> _function("pn_delivery_aborted")
cdef size_of_t pn_delivery_pending = <size_of_t> _function("pn_delivery_pending")
cdef bool_of_t pn_delivery_settled = <bool_of_t> _function("pn_delivery_settled")
cdef bool_of_t pn_delivery_updated = <bool_of_t> _function("pn_delivery_updated")
cdef state_t pn_delivery_remote_state = <state_t> _function("pn_delivery_remote_state")
cdef update_t pn_delivery_update = <update_t> _function("pn_delivery_update")
cdef on_t pn_delivery_clear = <on_t> _function("pn_delivery_clear")
cdef text_of_t pn_condition_get_name = <text_of_t> _function("pn_condition_get_name")
cdef text_of_t pn_condition_get_description = <text_of_t> _function("pn_condition_get_description")
cdef on_text_int_t pn_condition_set_name = <on_text_int_t> _function("pn_condition_set_name")
cdef on_text_int_t pn_condition_set_description = <on_text_int_t> _function("pn_condition_set_description")
