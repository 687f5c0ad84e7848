"""What programs do with the official Python client of Kubernetes, each step with its outcome checked.

    kubernetes_client.py KUBECONFIG NAMESPACE
"""

import logging
import pathlib
import sys
import threading

import yaml
from kubernetes import client, config, dynamic, watch
from kubernetes.client.exceptions import ApiException
from kubernetes.leaderelection import electionconfig, leaderelection
from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock


def pod(name, **labels):
    """A pod that nobody but this program writes to."""
    spec = client.V1PodSpec(
        scheduler_name="nobody",
        containers=[client.V1Container(name="c", image="pause")],
    )
    return client.V1Pod(metadata=client.V1ObjectMeta(name=name, labels=labels), spec=spec)


def refused(status, reason, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except ApiException as error:
        assert error.status == status, error
        assert f'"reason":"{reason}"' in error.body.replace(" ", ""), error.body
    else:
        raise AssertionError(f"{call.__name__}: nothing was refused")


def typed(namespace):
    core = client.CoreV1Api()
    assert len(core.list_node().items) == 3
    made = core.create_namespaced_pod(namespace, pod("a", app="x"))
    assert made.metadata.uid and made.spec.restart_policy == "Always"
    refused(409, "AlreadyExists", core.create_namespaced_pod, namespace, pod("a"))
    refused(404, "NotFound", core.read_namespaced_pod, "nobody", namespace)
    refused(422, "Invalid", core.create_namespaced_pod, namespace, pod("Not_A_Name"))

    patched = core.patch_namespaced_pod("a", namespace, {"metadata": {"labels": {"app": "y"}}})
    assert patched.metadata.labels == {"app": "y"}
    operations = [{"op": "add", "path": "/metadata/labels/tier", "value": "front"}]
    patched = core.patch_namespaced_pod("a", namespace, operations)
    assert patched.metadata.labels == {"app": "y", "tier": "front"}

    # A write on top of an old version is refused, on top of the new one it is not.
    patched.metadata.labels["app"] = "z"
    core.replace_namespaced_pod("a", namespace, patched)
    refused(409, "Conflict", core.replace_namespaced_pod, "a", namespace, patched)

    core.create_namespaced_pod(namespace, pod("b", app="x"))
    core.create_namespaced_pod(namespace, pod("c", app="x"))
    found = core.list_namespaced_pod(namespace, label_selector="app=x").items
    assert [each.metadata.name for each in found] == ["b", "c"]
    page = core.list_namespaced_pod(namespace, limit=2)
    rest = core.list_namespaced_pod(namespace, limit=2, _continue=page.metadata._continue)
    assert len(page.items) == 2 and len(rest.items) == 1 and not rest.metadata._continue
    assert page.metadata.resource_version == rest.metadata.resource_version
    assert "created" in core.read_namespaced_pod_log("b", namespace)


def watched(namespace):
    """Every change after a list, once and in order, until the server ends the watch."""
    core = client.CoreV1Api()
    listed = core.list_namespaced_pod(namespace)

    def change():
        core.patch_namespaced_pod("b", namespace, {"metadata": {"annotations": {"seen": "yes"}}})
        core.create_namespaced_pod(namespace, pod("d"))
        core.delete_namespaced_pod("d", namespace, grace_period_seconds=0)

    thread = threading.Thread(target=change)
    thread.start()
    seen = []
    watching = watch.Watch()
    version = listed.metadata.resource_version
    for event in watching.stream(core.list_namespaced_pod, namespace, resource_version=version, timeout_seconds=60):
        seen.append((event["type"], event["object"].metadata.name))
        if event["type"] == "DELETED":
            watching.stop()
    thread.join()
    assert seen == [("MODIFIED", "b"), ("ADDED", "d"), ("DELETED", "d")], seen


def untyped(namespace):
    """The dynamic client knows kinds by discovery alone."""
    resources = dynamic.DynamicClient(client.api_client.ApiClient())
    leases = resources.resources.get(api_version="coordination.k8s.io/v1", kind="Lease")
    body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "one"}, "spec": {"holderIdentity": "a"}}
    leases.create(body=body, namespace=namespace)
    leases.patch(name="one", namespace=namespace, body={"spec": {"holderIdentity": "b"}}, content_type="application/merge-patch+json")
    assert leases.get(name="one", namespace=namespace).spec.holderIdentity == "b"
    applied = dict(body, spec={"leaseDurationSeconds": 5})
    leases.server_side_apply(body=applied, namespace=namespace, field_manager="python")
    found = leases.get(name="one", namespace=namespace).spec
    assert (found.holderIdentity, found.leaseDurationSeconds) == ("b", 5), found
    assert [each.metadata.name for each in leases.get(namespace=namespace).items] == ["one"]
    leases.delete(name="one", namespace=namespace)
    assert leases.get(namespace=namespace).items == []


def all_kinds(namespace):
    """An object of each kind that people write, through the dynamic client."""
    manifest = pathlib.Path(__file__).parent.parent / "data/mixed/shop.yaml"
    api = dynamic.DynamicClient(client.ApiClient())
    documents = list(yaml.safe_load_all(manifest.read_text()))
    assert len({document["kind"] for document in documents}) == len(documents) >= 40
    for document in documents:
        name, kind = document["metadata"]["name"], document["kind"]
        resource = api.resources.get(api_version=document["apiVersion"], kind=kind)
        place = {"namespace": namespace} if resource.namespaced else {}
        made = resource.create(body=document, **place)
        assert (made.kind, made.metadata.name) == (kind, name), made
        labels = {"metadata": {"labels": {"seen": "yes"}}}
        merge = "application/merge-patch+json"
        resource.patch(body=labels, name=name, content_type=merge, **place)
        read = resource.get(name=name, **place)
        assert read.metadata.uid == made.metadata.uid
        assert read.metadata.labels["seen"] == "yes", read
        listed = resource.get(label_selector="seen=yes", **place).items
        assert name in [each.metadata.name for each in listed], listed
    for document in reversed(documents):
        resource = api.resources.get(api_version=document["apiVersion"], kind=document["kind"])
        place = {"namespace": namespace} if resource.namespaced else {}
        resource.delete(name=document["metadata"]["name"], **place)


def elected(namespace):
    """One of two candidates leads; when it stops, the other does."""
    logging.getLogger("leaderelection").setLevel(logging.ERROR)

    def candidate(name):
        lock = LeaseLock("leader", namespace, name)
        times = {"lease_duration": 3, "renew_deadline": 2, "retry_period": 1}
        settings = electionconfig.Config(lock, onstarted_leading=lambda: None, onstopped_leading=None, **times)
        return leaderelection.LeaderElection(settings)

    first, second = candidate("first"), candidate("second")
    assert first.try_acquire_or_renew()
    assert not second.try_acquire_or_renew(), "the first has it"
    lease = client.CoordinationV1Api().read_namespaced_lease("leader", namespace)
    assert "first" in lease.spec.holder_identity
    # The first does not renew any more, so the second gets it when it has run out.
    assert second.acquire()
    lease = client.CoordinationV1Api().read_namespaced_lease("leader", namespace)
    assert "second" in lease.spec.holder_identity
    assert not first.try_acquire_or_renew()


def deleted(namespace):
    core = client.CoreV1Api()
    core.delete_namespaced_pod("a", namespace)
    core.delete_collection_namespaced_pod(namespace)
    assert core.list_namespaced_pod(namespace).items == []


def main(kubeconfig, namespace):
    config.load_kube_config(kubeconfig)
    client.CoreV1Api().create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=namespace)))
    for step in (typed, watched, untyped, all_kinds, elected, deleted):
        step(namespace)
        print(step.__name__)


if __name__ == "__main__":
    main(*sys.argv[1:])
