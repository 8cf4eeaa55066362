"""gRPC's health service, `grpc.health.v1.Health`, on the port that agents dial.

Comes in: whether the gateway waits for something (`menura.health`). Goes out: SERVING, NOT_SERVING, or NOT_FOUND for a
service that is not here. Watch is not implemented, as the protocol allows: who watches asks again. Nothing is durable.
The service's two messages have a field each, so its bytes are written here:
https://github.com/grpc/grpc/blob/master/doc/health-checking.md
"""

import grpc
from menura.health import Readiness

#: HealthCheckResponse.status: field 1, a varint
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"
#: HealthCheckRequest.service: field 1, bytes; absent, or empty: the whole server
_SERVICES = {b"", b"\x0a\x00", b"\x0a\x11menura.v1.Gateway"}


def health_handler(readiness: Readiness) -> grpc.GenericRpcHandler:
    async def check(request: bytes, context: "grpc.aio.ServicerContext[bytes, bytes]") -> bytes:
        if request not in _SERVICES:
            await context.abort(grpc.StatusCode.NOT_FOUND, "the service is menura.v1.Gateway, or none for all")
        return NOT_SERVING if readiness.reasons() else SERVING

    return grpc.method_handlers_generic_handler(
        "grpc.health.v1.Health", {"Check": grpc.unary_unary_rpc_method_handler(check)}
    )
