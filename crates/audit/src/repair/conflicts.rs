//! Which of several nodes keep their blocks where these share addresses.

use std::cmp::Reverse;

use ipnet::IpNet;

/// A node as a holder of a block.
#[derive(Clone, Debug)]
pub(super) struct Holder<'a> {
    /// Its pods with addresses of the block.
    pub(super) pods: u64,
    /// RFC 3339: the earlier is the lesser text.
    pub(super) created: &'a str,
    pub(super) name: &'a str,
}

/// A block that its node cannot keep.
#[derive(Debug)]
pub(super) struct Loss<'a> {
    pub(super) node: &'a str,
    pub(super) block: IpNet,
    pub(super) why: String,
}

/// A prefix, who has just that, and who keeps a block inside it.
struct Level<'a> {
    block: IpNet,
    holders: Vec<Holder<'a>>,
    inside: Vec<(IpNet, Holder<'a>)>,
}

/// Moving a node costs a drain, and each of its pods a pod.
fn cost(holder: &Holder<'_>) -> u64 {
    holder.pods.saturating_add(1)
}

/// Chooses who keeps a block so that as few pods as possible are moved, and returns the others.
///
/// Prefixes nest or are apart. So for each prefix there are two candidates: one of the nodes that have just that, or the best of what is inside it.
pub(super) fn resolve<'a>(mut blocks: Vec<(IpNet, Holder<'a>)>) -> Vec<Loss<'a>> {
    blocks.sort_unstable_by(|(a, one), (b, other)| a.cmp(b).then_with(|| one.name.cmp(other.name)));
    let mut losses = Vec::new();
    let mut open: Vec<Level<'a>> = Vec::new();
    for (block, holder) in blocks {
        while let Some(level) = open.pop_if(|level| !level.block.contains(&block)) {
            close(level, &mut open, &mut losses);
        }
        match open.last_mut() {
            Some(level) if level.block == block => level.holders.push(holder),
            _ => open.push(Level {
                block,
                holders: vec![holder],
                inside: Vec::new(),
            }),
        }
    }
    while let Some(level) = open.pop() {
        close(level, &mut open, &mut losses);
    }
    losses
}

/// Decides a prefix of which all is known, and tells the prefix around it who is left.
fn close<'a>(level: Level<'a>, open: &mut [Level<'a>], losses: &mut Vec<Loss<'a>>) {
    let Level {
        block,
        mut holders,
        inside,
    } = level;
    // The most pods first, then the oldest, which had the block first.
    holders.sort_by(|a, b| {
        let key = |holder: &Holder<'a>| (Reverse(holder.pods), holder.created, holder.name);
        key(a).cmp(&key(b))
    });
    let mut holders = holders.into_iter();
    let Some(best) = holders.next() else { return };
    losses.extend(holders.map(|holder| Loss {
        node: holder.name,
        block,
        why: format!(
            "{block} stays with {}, which has {}",
            best.name,
            more(&best, &holder)
        ),
    }));
    let all_inside = inside
        .iter()
        .fold(0, |sum, (_, holder)| cost(holder).saturating_add(sum));
    let kept = if cost(&best) > all_inside {
        losses.extend(inside.into_iter().map(|(narrow, holder)| Loss {
            node: holder.name,
            block: narrow,
            why: format!(
                "its block lies in {block} of {}, whose move would replace more pods",
                best.name
            ),
        }));
        vec![(block, best)]
    } else {
        losses.push(Loss {
            node: best.name,
            block,
            why: format!(
                "its block contains that of {}, and moving it replaces fewer pods",
                of_whom(&inside)
            ),
        });
        inside
    };
    if let Some(around) = open.last_mut() {
        around.inside.extend(kept);
    }
}

fn more(best: &Holder<'_>, other: &Holder<'_>) -> String {
    match best.pods > other.pods {
        true => format!("more pods in it ({} against {})", best.pods, other.pods),
        false if best.created < other.created => "as many pods in it and is older".into(),
        false => "as many pods in it".into(),
    }
}

fn of_whom(inside: &[(IpNet, Holder<'_>)]) -> String {
    match inside {
        [(_, only)] => only.name.into(),
        several => format!("{} nodes", several.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `BLOCK NODE PODS` each; returns who loses.
    fn losers(holders: &[&'static str]) -> Vec<String> {
        let holder = |text: &&'static str| {
            let mut words = text.split(' ');
            let mut next = || words.next().unwrap();
            let (block, name) = (next().parse().unwrap(), next());
            let (pods, created) = (next().parse().unwrap(), "");
            (
                block,
                Holder {
                    pods,
                    created,
                    name,
                },
            )
        };
        let losses = resolve(holders.iter().map(holder).collect());
        let mut names: Vec<_> = losses.iter().map(|loss| loss.node.to_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn as_few_pods_as_possible_are_moved() {
        for (holders, want) in [
            (&["10.0.0.0/24 a 3", "10.0.1.0/24 b 1"][..], &[][..]),
            (
                &["10.0.0.0/24 a 3", "10.0.0.0/24 b 1", "10.0.0.0/24 c 3"],
                &["b", "c"],
            ),
            // One against many, either way.
            (
                &["10.0.0.0/16 w 5", "10.0.0.0/24 a 3", "10.0.7.0/24 b 3"],
                &["w"],
            ),
            (
                &["10.0.0.0/16 w 9", "10.0.0.0/24 a 3", "10.0.7.0/24 b 3"],
                &["a", "b"],
            ),
            // What has lost already is no reason against a wide one.
            (
                &["10.0.0.0/16 w 7", "10.0.0.0/24 a 3", "10.0.0.0/24 b 3"],
                &["a", "b"],
            ),
            // Three deep: the middle one is not worth what it contains, nor is the widest.
            (
                &[
                    "10.0.0.0/8 w 4",
                    "10.0.0.0/16 m 1",
                    "10.0.0.0/24 a 1",
                    "10.0.1.0/24 b 1",
                    "10.9.0.0/16 c 0",
                ],
                &["m", "w"],
            ),
            (
                &[
                    "fd00::/64 a 1",
                    "10.0.0.0/24 a 1",
                    "fd00::/64 b 2",
                    "10.0.0.0/24 c 2",
                ],
                &["a", "a"],
            ),
        ] {
            assert_eq!(losers(holders), want, "{holders:?}");
        }
    }
}
