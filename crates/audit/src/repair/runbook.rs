//! The runbook: the steps in order, each with a check.

use std::fmt::Write as _;

use ipnet::IpNet;

use super::{NodeMove, Repair, family_flag, manifest};

/// The whole page.
pub(super) fn text(repair: &Repair, audit: &str) -> String {
    let mut page = String::new();
    write(&mut page, repair, audit).expect("a string takes everything");
    page
}

fn write(page: &mut String, repair: &Repair, audit: &str) -> std::fmt::Result {
    let Repair {
        moves,
        assigned,
        left,
        pods,
    } = repair;
    page.push_str(
        "# Repair of node blocks\n\n\
         One node after the other, from top to bottom; the next one only when the last check of the one before was right. Commands run in this\n\
         directory. What was read may have changed since: if a check says something else than is written here, stop, and audit again.\n\n",
    );
    if !moves.is_empty() || !assigned.is_empty() {
        page.push_str("| node | has | will have | pods | why this node |\n|---|---|---|---|---|\n");
        for moved in moves.iter().chain(assigned) {
            let NodeMove {
                node, pods, why, ..
            } = moved;
            writeln!(
                page,
                "| {node} | {} | {} | {pods} | {} |",
                from(moved),
                to(moved),
                cell(&why.join("; "))
            )?;
        }
        page.push_str(
            "\nThe new blocks are in the cluster CIDR, outside of the service range, and free: no node has them, or had them when this was written, and no pod has an\n\
             address of them. The controller that gives blocks does not know of this page. Before each node, see that it has given none of them to a new node meanwhile:\n\n\
             ```sh\nkubectl get nodes -o jsonpath='{range .items[*]}{.metadata.name}{\"\\t\"}{.spec.podCIDRs}{\"\\n\"}{end}'\n```\n\n",
        );
    }
    if !left.is_empty() {
        page.push_str("Nothing can be done here for these:\n\n");
        for (node, why) in left {
            writeln!(page, "- {}: {}", cell(node), cell(why))?;
        }
        page.push('\n');
    }
    for moved in moves {
        node(page, moved)?;
    }
    for moved in assigned {
        without_block(page, moved)?;
    }
    if !pods.is_empty() {
        page.push_str(
            "## Pods with wrong addresses\n\nTheir nodes keep their blocks. Deleted, they are made again by their owners, and get an address of the block; a pod without an owner is not made again.\n\n```sh\n",
        );
        for pod in pods {
            let (namespace, name) = pod.split_once('/').unwrap_or(("default", pod));
            writeln!(page, "kubectl delete pod --namespace {namespace} {name}")?;
        }
        page.push_str("```\n\n");
    }
    write!(
        page,
        "## At the end\n\nNothing of this is found any more:\n\n```sh\nkubectl get nodes,pods --all-namespaces -o json | {audit}\n```\n"
    )
}

/// Writes the steps for a node that is deleted and applied anew.
fn node(page: &mut String, moved: &NodeMove) -> std::fmt::Result {
    let NodeMove {
        node, to: blocks, ..
    } = moved;
    let (from, to, file) = (from(moved), to(moved), manifest::file(node));
    write!(page, "## {node}: {from} → {to}\n\n")?;
    if moved.has_its_pods {
        write!(
            page,
            "All of its pods have addresses of {to} already. If `ip address show` says on the node that its bridge has one too, \
             the steps that drain the node, remove the bridge and delete its pods can be left out.\n\n"
        )?;
    }
    let mut number = 0;
    let mut step = |what: &str, command: &str, check: &str| {
        number += 1;
        write!(page, "{number}. {what}\n\n   ```sh\n")?;
        for line in command.lines() {
            writeln!(page, "   {line}")?;
        }
        write!(page, "   ```\n\n   Check: {check}\n\n")
    };
    let of_node = format!("--field-selector spec.nodeName={node}");
    step(
        "Cordon it: no new pod comes.",
        &format!("kubectl cordon {node}"),
        &format!("`kubectl get node {node}` says `SchedulingDisabled`."),
    )?;
    step(
        "Drain it. Pods without an owner hold it up; with `--force` they are deleted, and nobody makes them again.",
        &format!("kubectl drain {node} --ignore-daemonsets --delete-emptydir-data --timeout=10m"),
        &format!(
            "`kubectl get pods --all-namespaces {of_node}` shows pods of DaemonSets and of the node itself only."
        ),
    )?;
    step(
        "Keep what it was, to go back to.",
        &format!("kubectl get node {node} -o yaml > {node}.before.yaml"),
        &format!(
            "`grep -A 2 podCIDR {node}.before.yaml` shows {from}, and `diff {node}.before.yaml {file}` nothing else of the `spec` but its blocks, the cordon and taints that come with it."
        ),
    )?;
    step(
        "Delete the Node object. Its machine and kubelet go on; do not restart the kubelet until the next step is done, or it registers the node without a block.",
        &format!("kubectl delete node {node}"),
        &format!("`kubectl get node {node}` says `NotFound`."),
    )?;
    step(
        "Apply it with the new block.",
        &format!("kubectl apply -f {file}"),
        &format!(
            "`kubectl get node {node} -o jsonpath='{{.spec.podCIDRs}}'` prints `{}`, and no other node has that. Refused because another node has the block by now: audit again, and take the block of the new repair.",
            json_list(blocks)
        ),
    )?;
    step(
        "Remove the old bridge: it has an address of the old block, and the plugin refuses it (`\"cni0\" already has an IP address different from …`). On the node; kubenet's is `cbr0`, and a podplane node's goes with `podplane node reset-bridge`.",
        "ip link delete cni0",
        "`ip address show cni0` on the node says that it does not exist, or shows an address of the new block.",
    )?;
    step(
        "Restart the routing agent of the node, which goes by the block that it saw at its start. For flannel:",
        &format!("kubectl delete pods --namespace kube-flannel {of_node}"),
        &format!(
            "on another node, {}, and no route to {from} leads there.",
            routes(blocks, node)
        ),
    )?;
    step(
        "Delete every old pod of the node, those of DaemonSets included: they have addresses of the old block.",
        &format!("kubectl delete pods --all-namespaces {of_node}"),
        &format!(
            "`kubectl get pods --all-namespaces -o wide {of_node}` shows addresses of {to}, or the node's own for pods on its network."
        ),
    )?;
    step(
        "Ping a pod there from a pod on another node. This one needs no scheduler, so the cordon does not keep it out:",
        &format!(
            "kubectl run probe --image=busybox --overrides='{{\"spec\":{{\"nodeName\":\"{node}\"}}}}' -- sleep 600\n\
             kubectl wait --for=condition=Ready pod/probe\n\
             kubectl exec POD-ON-ANOTHER-NODE -- ping -c 3 \"$(kubectl get pod probe -o jsonpath='{{.status.podIP}}')\"\n\
             kubectl delete pod probe"
        ),
        &format!("no packet is lost, and the address is of {to}."),
    )?;
    step(
        "Uncordon it.",
        &format!("kubectl uncordon {node}"),
        &format!("`kubectl get node {node}` says `Ready`, without `SchedulingDisabled`."),
    )
}

/// Writes the steps for a node without a block: `spec.podCIDRs` can be set once.
fn without_block(page: &mut String, moved: &NodeMove) -> std::fmt::Result {
    let NodeMove {
        node, to: blocks, ..
    } = moved;
    let (to, list) = (to(moved), json_list(blocks));
    let first = blocks.first().map(ToString::to_string).unwrap_or_default();
    write!(
        page,
        "## {node}: no block → {to}\n\n\
         1. Give it the block. That can be done once, and only while it has none: the node need not be deleted.\n\n   \
         ```sh\n   kubectl patch node {node} --type=merge --patch '{{\"spec\":{{\"podCIDR\":\"{first}\",\"podCIDRs\":{list}}}}}'\n   ```\n\n   \
         Check: `kubectl get node {node} -o jsonpath='{{.spec.podCIDRs}}'` prints `{list}`, and no other node has that. Refused because the node has a block by now: the controller was faster; leave it.\n\n\
         2. Restart the routing agent of the node. For flannel:\n\n   \
         ```sh\n   kubectl delete pods --namespace kube-flannel --field-selector spec.nodeName={node}\n   ```\n\n   \
         Check: on another node, {}.\n\n",
        routes(blocks, node)
    )?;
    if moved.has_its_pods {
        return write!(
            page,
            "Pods that wait for an address get one by themselves; all others have addresses of {to} already.\n\n"
        );
    }
    write!(
        page,
        "3. Pods that wait for an address get one by themselves; those with an address of elsewhere have to be deleted.\n\n   \
         ```sh\n   kubectl delete pods --all-namespaces --field-selector spec.nodeName={node}\n   ```\n\n   \
         Check: `kubectl get pods --all-namespaces -o wide --field-selector spec.nodeName={node}` shows addresses of {to}.\n\n"
    )
}

fn from(moved: &NodeMove) -> String {
    match moved.from.as_slice() {
        [] => "none".into(),
        blocks => cell(&blocks.join(", ")),
    }
}

fn to(moved: &NodeMove) -> String {
    let blocks: Vec<_> = moved.to.iter().map(ToString::to_string).collect();
    blocks.join(", ")
}

/// The blocks as kubectl prints them.
fn json_list(blocks: &[IpNet]) -> String {
    let blocks: Vec<_> = blocks.iter().map(|block| format!("\"{block}\"")).collect();
    format!("[{}]", blocks.join(","))
}

fn routes(blocks: &[IpNet], node: &str) -> String {
    let each = blocks
        .iter()
        .map(|block| format!("`ip {} route show {block}`", family_flag(block)));
    format!(
        "{} shows a route by way of {node}",
        each.collect::<Vec<_>>().join(" and ")
    )
}

/// A text of a dump, safe for a table's cell or a line.
fn cell(text: &str) -> String {
    let safe = text.chars().map(|c| match c {
        '|' | '`' | '<' => '?',
        // These would reorder the text after them.
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            '?'
        }
        c if c.is_control() => '?',
        c => c,
    });
    safe.collect()
}
