"""A collector of OpenTelemetry's own messages: prints its port, and then each span that it is sent, as a line of JSON."""

import json
import sys
import threading
from concurrent import futures

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as messages
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as services
from opentelemetry.proto.trace.v1 import trace_pb2

# Requests come in several threads.
ONE_AT_A_TIME = threading.Lock()


def value(any_value):
    return getattr(any_value, any_value.WhichOneof("value"))


def attributes(pairs):
    return {pair.key: value(pair.value) for pair in pairs}


class Collector(services.TraceServiceServicer):
    def Export(self, request, context):
        with ONE_AT_A_TIME:
            self.show_all(request)
        return messages.ExportTraceServiceResponse()

    def show_all(self, request):
        for of_resource in request.resource_spans:
            resource = attributes(of_resource.resource.attributes)
            for of_scope in of_resource.scope_spans:
                for span in of_scope.spans:
                    self.show(resource, span)
        sys.stdout.flush()

    @staticmethod
    def show(resource, span):
        line = {
            "service": resource.get("service.name"),
            "trace": span.trace_id.hex(),
            "id": span.span_id.hex(),
            "parent": span.parent_span_id.hex(),
            "name": span.name,
            "kind": trace_pb2.Span.SpanKind.Name(span.kind),
            "start": span.start_time_unix_nano,
            "end": span.end_time_unix_nano,
            "attributes": attributes(span.attributes),
            "links": [link.trace_id.hex() + "-" + link.span_id.hex() for link in span.links],
            "error": span.status.message if span.status.code == trace_pb2.Status.STATUS_CODE_ERROR else None,
        }
        print(json.dumps(line))


def main():
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    services.add_TraceServiceServicer_to_server(Collector(), server)
    port = server.add_insecure_port(sys.argv[1])
    server.start()
    print(port, flush=True)
    # Whoever started it holds the other end of its standard input.
    sys.stdin.read()
    server.stop(None)


main()
