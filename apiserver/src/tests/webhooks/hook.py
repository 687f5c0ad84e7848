"""An admission webhook that knows the protocol from Kubernetes' documentation alone.

Arguments: the file with the certificate and the key. It writes its port to standard output.
Pods get the label "seen-by"; ConfigMaps with the key "forbidden" are refused.
"""

import base64
import http.server
import json
import ssl
import sys


class Hook(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        review = json.load(self.rfile if "Content-Length" not in self.headers else Body(self))
        request = review["request"]
        response = {"uid": request["uid"], "allowed": True}
        if self.path.startswith("/label"):
            labels = dict(request["object"]["metadata"].get("labels", {}), **{"seen-by": "python"})
            patch = [{"op": "add", "path": "/metadata/labels", "value": labels}]
            response["patchType"] = "JSONPatch"
            response["patch"] = base64.b64encode(json.dumps(patch).encode()).decode()
            response["warnings"] = ["labelled by " + request["userInfo"]["username"]]
        elif "forbidden" in (request["object"].get("data") or {}):
            response["allowed"] = False
            response["status"] = {"code": 403, "reason": "Forbidden", "message": "no forbidden keys"}
        body = json.dumps({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response})
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *arguments):
        pass


class Body:
    def __init__(self, handler):
        self.handler = handler

    def read(self):
        return self.handler.rfile.read(int(self.handler.headers["Content-Length"]))


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1])
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
server.serve_forever()
