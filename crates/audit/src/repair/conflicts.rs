//! The choice of the nodes that keep their blocks if these overlap.

use std::cmp::Reverse;

use ipnet::IpNet;

/// A node as a holder of a block.
#[derive(Clone, Debug)]
pub(super) struct BlockHolder<'a> {
    /// Its pods with addresses of the block.
    pub(super) pods: u64,
    /// The creation time as RFC 3339, whose order as text is that of time.
    pub(super) created: &'a str,
    pub(super) name: &'a str,
}

/// A block that its node cannot keep.
#[derive(Debug)]
pub(super) struct LostBlock<'a> {
    pub(super) node: &'a str,
    pub(super) block: IpNet,
    pub(super) why: String,
}

/// A prefix, its holders, and the holders of blocks inside it that can stay.
struct PrefixLevel<'a> {
    block: IpNet,
    holders: Vec<BlockHolder<'a>>,
    inside: Vec<(IpNet, BlockHolder<'a>)>,
}

/// The cost of moving a node: one drain, and the recreation of each pod.
fn cost(holder: &BlockHolder<'_>) -> u64 {
    holder.pods.saturating_add(1)
}

/// Chooses the holders that keep their blocks so that as few pods as possible are moved, and
/// returns the others.
///
/// Prefixes nest or are disjoint, so there are two candidates for each prefix: one of its holders,
/// or the best choice for the blocks inside it.
pub(super) fn resolve<'a>(mut blocks: Vec<(IpNet, BlockHolder<'a>)>) -> Vec<LostBlock<'a>> {
    blocks.sort_unstable_by(|(a, one), (b, other)| a.cmp(b).then_with(|| one.name.cmp(other.name)));
    let mut losses = Vec::new();
    let mut open: Vec<PrefixLevel<'a>> = Vec::new();
    for (block, holder) in blocks {
        while let Some(level) = open.pop_if(|level| !level.block.contains(&block)) {
            close(level, &mut open, &mut losses);
        }
        match open.last_mut() {
            Some(level) if level.block == block => level.holders.push(holder),
            _ => open.push(PrefixLevel {
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

/// Decides a complete prefix, and passes the remaining holders to the prefix around it.
fn close<'a>(
    level: PrefixLevel<'a>,
    open: &mut [PrefixLevel<'a>],
    losses: &mut Vec<LostBlock<'a>>,
) {
    let PrefixLevel {
        block,
        mut holders,
        inside,
    } = level;
    // The most pods first, then the oldest, which had the block first.
    holders.sort_by(|a, b| {
        let key = |holder: &BlockHolder<'a>| (Reverse(holder.pods), holder.created, holder.name);
        key(a).cmp(&key(b))
    });
    let mut holders = holders.into_iter();
    let Some(best) = holders.next() else { return };
    losses.extend(holders.map(|holder| LostBlock {
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
        losses.extend(inside.into_iter().map(|(narrow, holder)| LostBlock {
            node: holder.name,
            block: narrow,
            why: format!(
                "its block lies in {block} of {}, whose move would replace more pods",
                best.name
            ),
        }));
        vec![(block, best)]
    } else {
        losses.push(LostBlock {
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

fn more(best: &BlockHolder<'_>, other: &BlockHolder<'_>) -> String {
    match best.pods > other.pods {
        true => format!("more pods in it ({} against {})", best.pods, other.pods),
        false if best.created < other.created => "as many pods in it and is older".into(),
        false => "as many pods in it".into(),
    }
}

fn of_whom(inside: &[(IpNet, BlockHolder<'_>)]) -> String {
    match inside {
        [(_, only)] => only.name.into(),
        several => format!("{} nodes", several.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes `BLOCK NODE PODS` each; returns the nodes that lose their block.
    fn losers(holders: &[&'static str]) -> Vec<String> {
        let holder = |text: &&'static str| {
            let mut words = text.split(' ');
            let mut next = || words.next().unwrap();
            let (block, name) = (next().parse().unwrap(), next());
            let (pods, created) = (next().parse().unwrap(), "");
            (
                block,
                BlockHolder {
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
    fn moves_as_few_pods_as_possible() {
        for (holders, want) in [
            (&["10.0.0.0/24 a 3", "10.0.1.0/24 b 1"][..], &[][..]),
            (
                &["10.0.0.0/24 a 3", "10.0.0.0/24 b 1", "10.0.0.0/24 c 3"],
                &["b", "c"],
            ),
            // One against many, with either result.
            (
                &["10.0.0.0/16 w 5", "10.0.0.0/24 a 3", "10.0.7.0/24 b 3"],
                &["w"],
            ),
            (
                &["10.0.0.0/16 w 9", "10.0.0.0/24 a 3", "10.0.7.0/24 b 3"],
                &["a", "b"],
            ),
            // Holders that have lost already do not count against a wider block.
            (
                &["10.0.0.0/16 w 7", "10.0.0.0/24 a 3", "10.0.0.0/24 b 3"],
                &["a", "b"],
            ),
            // Nested three deep: the middle one costs less than the blocks in it, and so does the
            // widest.
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
