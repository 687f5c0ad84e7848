//! The node condition `PodCIDRForeign`: the node's blocks do not fit the configuration.
//!
//! It is True when something is wrong, as conditions for monitoring are (MemoryPressure,
//! NetworkUnavailable). Once the blocks fit again it stays, with status False; a node that never
//! had it does not get it.

use podplane_api::{
    Object as _,
    core::{Node, NodeCondition},
    jiff::Timestamp,
    meta::Time,
};
use podplane_client::{ApiError, Client, answered};
use podplane_host::clock;

use crate::plan::NodeVerdict;

const TYPE: &str = "PodCIDRForeign";

/// The message of the condition, if it is True.
pub(crate) fn of(node: &Node) -> Option<String> {
    let status = node.status.as_ref()?;
    let mut conditions = status.conditions.iter().flatten();
    let found = conditions.find(|condition| condition.type_ == TYPE)?;
    (found.status == "True").then(|| found.message.clone().unwrap_or_default())
}

/// Writes the condition into the node of this UID; does nothing if that is deleted.
pub(crate) async fn write(
    client: &Client,
    name: &str,
    uid: &str,
    verdict: Option<&NodeVerdict>,
) -> Result<(), ApiError> {
    let nodes = client.all::<Node>();
    let mut node = match answered(nodes.get(name)).await {
        Ok(node) if node.uid() == uid => node,
        Ok(_) => return Ok(()),
        Err(error) if error.is_not_found() => return Ok(()),
        Err(error) => return Err(error),
    };
    if of(&node) == verdict.map(|verdict| verdict.message.clone()) {
        return Ok(());
    }
    set(&mut node, verdict, clock::timestamp());
    // The update is guarded by the revision that was read, so it cannot undo another writer's
    // condition.
    match answered(nodes.update_status(&node)).await {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

fn set(node: &mut Node, verdict: Option<&NodeVerdict>, now: Timestamp) {
    let status = node.status.get_or_insert_default();
    let conditions = status.conditions.get_or_insert_default();
    let (value, reason, message) = match verdict {
        Some(verdict) => ("True", verdict.reason, verdict.message.clone()),
        None => (
            "False",
            "PodCIDRFits",
            "the node's blocks fit the configuration".to_owned(),
        ),
    };
    let old = conditions
        .iter()
        .position(|condition| condition.type_ == TYPE);
    let unchanged = old.and_then(|at| {
        let old = &conditions[at];
        (old.status == value).then(|| old.last_transition_time.clone())?
    });
    let condition = NodeCondition {
        type_: TYPE.to_owned(),
        status: value.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_heartbeat_time: Some(Time(now)),
        last_transition_time: Some(unchanged.unwrap_or(Time(now))),
    };
    match old {
        Some(at) => conditions[at] = condition,
        None => conditions.push(condition),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(message: &str) -> NodeVerdict {
        NodeVerdict {
            reason: "WrongSize",
            message: message.to_owned(),
        }
    }

    #[test]
    fn sets_and_clears_the_condition() {
        let mut node = Node::default();
        assert_eq!(of(&node), None);
        let at = |second| Timestamp::from_second(second).unwrap();
        set(&mut node, Some(&verdict("a")), at(1));
        assert_eq!(of(&node).as_deref(), Some("a"));
        set(&mut node, Some(&verdict("b")), at(2));
        assert_eq!(of(&node).as_deref(), Some("b"));
        let conditions = |node: &Node| node.status.clone().unwrap().conditions.unwrap();
        let shown = &conditions(&node)[0];
        assert_eq!(shown.last_transition_time, Some(Time(at(1))));
        set(&mut node, None, at(3));
        assert_eq!(of(&node), None);
        let shown = conditions(&node);
        assert_eq!((shown.len(), shown[0].status.as_str()), (1, "False"));
        assert_eq!(shown[0].last_transition_time, Some(Time(at(3))));
    }
}
