"""Starts a cluster, makes pods through both of its APIs, and looks whose addresses they have.

    python3 addresses.py [FLAGS OF podplane up]
"""

import sys

from kubernetes import client, config, watch

from podplane_cluster import Cluster

CONTAINER = {"name": "web", "image": "nginx"}


def deploy(replicas):
    """A Deployment, as the official client of Kubernetes makes it."""
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [CONTAINER]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    client.AppsV1Api().create_namespaced_deployment("default", {"metadata": {"name": "web"}, "spec": spec})


def running(count):
    """Watches until so many pods are Running."""
    pods = {}
    for event in watch.Watch().stream(client.CoreV1Api().list_namespaced_pod, "default", timeout_seconds=60):
        pods[event["object"].metadata.name] = event["object"]
        up = [pod for pod in pods.values() if pod.status.phase == "Running"]
        if len(up) == count:
            return up
    sys.exit(f"after a minute, {count} pods do not run: {[(name, pod.status.phase) for name, pod in pods.items()]}")


def main(flags):
    with Cluster("--network", "ledger", *flags) as cluster:
        config.load_kube_config(cluster.kubeconfig)
        nodes = {node.metadata.name: node.spec.pod_cidr for node in client.CoreV1Api().list_node().items}
        for name, block in sorted(nodes.items()):
            print(f"{name} has {block}")

        deploy(replicas=5)
        # The same objects over gRPC, with nothing but what the server says of itself.
        pod = {"metadata": {"name": "by-grpc", "namespace": "default"}, "spec": {"containers": [CONTAINER]}}
        cluster.grpc("apiserver").call("podplane.core.v1.PodService", "CreatePod", pod=pod)

        controller = cluster.grpc("ipam-controller")
        addresses = set()
        for pod in running(6):
            address = pod.status.pod_ip
            owner = controller.call("podplane.ipam.v1.IpamService", "GetOwner", address=address)
            [block] = owner["blocks"]
            print(f"{pod.metadata.name}: {address} of {block['cidr']} on {block['nodeName']}")
            assert block["nodeName"] == pod.spec.node_name and block["cidr"] == nodes[pod.spec.node_name]
            addresses.add(address)
        print(f"{len(addresses)} pods, {len(addresses)} addresses, each of its node's block")
        assert len(addresses) == 6


if __name__ == "__main__":
    main(sys.argv[1:])
