"""Error conditions of AMQP 1.0, by their names in the specification.

Part 2, sections 2.8.15 (any), 2.8.16 (connections) and 2.8.18 (links); transactions: part 4,
section 4.5.8.
"""

INTERNAL_ERROR = "amqp:internal-error"
NOT_FOUND = "amqp:not-found"
UNAUTHORIZED_ACCESS = "amqp:unauthorized-access"
DECODE_ERROR = "amqp:decode-error"
RESOURCE_LIMIT_EXCEEDED = "amqp:resource-limit-exceeded"
NOT_ALLOWED = "amqp:not-allowed"
INVALID_FIELD = "amqp:invalid-field"
NOT_IMPLEMENTED = "amqp:not-implemented"
PRECONDITION_FAILED = "amqp:precondition-failed"

CONNECTION_FORCED = "amqp:connection:forced"

TRANSFER_LIMIT_EXCEEDED = "amqp:link:transfer-limit-exceeded"
MESSAGE_SIZE_EXCEEDED = "amqp:link:message-size-exceeded"

TRANSACTION_ROLLBACK = "amqp:transaction:rollback"
TRANSACTION_UNKNOWN_ID = "amqp:transaction:unknown-id"
