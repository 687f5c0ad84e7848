"""A podplane cluster for as long as a `with` block, and its gRPC services by what reflection tells of them."""

import pathlib
import shutil
import subprocess
import tempfile

import grpc
from google.protobuf import descriptor_pool, json_format, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase


class Cluster:
    """A cluster in a temporary directory. It ends with the block, and with this process, however that ends."""

    def __init__(self, *flags):
        self.flags = flags

    def __enter__(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="pp-"))
        command = ["podplane", "up", "--until-eof", "--purge", "--wait", "--data-dir", self.dir, *self.flags]
        # While this end of the pipe is open, the cluster goes on.
        self.up = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        said = self.up.stderr.read()
        if self.up.wait() != 0:
            self.__exit__()
            raise RuntimeError(f"podplane up failed:\n{said}")
        return self

    def __exit__(self, *_):
        subprocess.run(["podplane", "down", "--data-dir", self.dir], check=True, stderr=subprocess.DEVNULL)
        self.up.stdin.close()
        shutil.rmtree(self.dir, ignore_errors=True)

    @property
    def kubeconfig(self):
        return str(self.dir / "kubeconfig")

    def grpc(self, process):
        """The services of `apiserver`, `ipam-controller`, `scheduler`, …"""
        # grpcio would send the socket's path as the HTTP/2 authority, which is no valid one.
        options = [("grpc.default_authority", "localhost")]
        return Services(grpc.insecure_channel(f"unix:{self.dir / process}.sock", options))


class Services:
    """The gRPC services at the other end of a channel."""

    def __init__(self, channel):
        self.channel = channel
        self.pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(self.channel))

    def call(self, service, method, **request):
        """Calls a method with a request in proto3's JSON; the answer is in the same."""
        described = self.pool.FindServiceByName(service).FindMethodByName(method)
        question = message_factory.GetMessageClass(described.input_type)
        answer = message_factory.GetMessageClass(described.output_type)
        stub = self.channel.unary_unary(
            f"/{service}/{method}",
            request_serializer=question.SerializeToString,
            response_deserializer=answer.FromString,
        )
        message = json_format.ParseDict(request, question(), descriptor_pool=self.pool)
        return json_format.MessageToDict(stub(message, timeout=10), descriptor_pool=self.pool)
