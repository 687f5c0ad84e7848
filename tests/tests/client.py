"""A gRPC client that knows nothing of podplane but what reflection tells it.

    client.py services ADDRESS                      prints the services, one a line
    client.py health ADDRESS SERVICE                prints the service's health
    client.py call ADDRESS SERVICE METHOD JSON      prints the answer as JSON

ADDRESS is HOST:PORT, unix:PATH, or https://HOST:PORT, whose authority ca.crt and whose client's
certificate admin.pem are in the directory PKI of the environment.
"""

import json
import os
import pathlib
import sys

import grpc
from google.protobuf import descriptor_pool, json_format, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase


def call(channel, pool, service, method, request):
    described = pool.FindServiceByName(service).FindMethodByName(method)
    question = message_factory.GetMessageClass(described.input_type)
    answer = message_factory.GetMessageClass(described.output_type)
    stub = channel.unary_unary(
        f"/{service}/{method}",
        request_serializer=question.SerializeToString,
        response_deserializer=answer.FromString,
    )
    # As is customary for commands that are part of somebody's trace.
    traceparent = os.environ.get("TRACEPARENT")
    metadata = [("traceparent", traceparent)] if traceparent else []
    message = json_format.ParseDict(request, question(), descriptor_pool=pool)
    return json_format.MessageToDict(stub(message, timeout=10, metadata=metadata), descriptor_pool=pool)


def connect(address):
    if address.startswith("https://"):
        pki = pathlib.Path(os.environ["PKI"])
        pair = (pki / "admin.pem").read_bytes()
        credentials = grpc.ssl_channel_credentials((pki / "ca.crt").read_bytes(), pair, pair)
        return grpc.secure_channel(address.removeprefix("https://"), credentials)
    # grpcio would send a socket's path as the HTTP/2 authority, which is no valid one.
    options = [("grpc.default_authority", "localhost")] if address.startswith("unix:") else []
    return grpc.insecure_channel(address, options)


def main(verb, address, *rest):
    with connect(address) as channel:
        grpc.channel_ready_future(channel).result(timeout=10)
        reflected = ProtoReflectionDescriptorDatabase(channel)
        pool = descriptor_pool.DescriptorPool(reflected)
        try:
            if verb == "services":
                print("\n".join(sorted(reflected.get_services())))
            elif verb == "health":
                print(call(channel, pool, "grpc.health.v1.Health", "Check", {"service": rest[0]})["status"])
            elif verb == "call":
                service, method, request = rest
                print(json.dumps(call(channel, pool, service, method, json.loads(request))))
            else:
                sys.exit(__doc__)
        except grpc.RpcError as error:
            sys.exit(f"{error.code().name}: {error.details()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
