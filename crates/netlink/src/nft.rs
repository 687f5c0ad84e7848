//! nftables through netlink: atomic changes ([`Batch`]), and lists of chains and rules.
//!
//! A rule is a list of [`Expr`]s, made by the functions of [`expr`]. The comments that `nft` shows
//! are user data of the object, in a format of its own. This module reads and writes it, so that
//! rules of any program are found again by their comments.

pub mod expr;

use std::{fmt, path::Path};

use netlink_packet_core::{NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_NONREC, NLM_F_REQUEST};
use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily,
    nftables::{
        ChainAttribute, ChainMessage, Hook as HookAttribute, HookNumber, InetHookNumber,
        NfTablesMessage, RuleAttribute, RuleMessage, TableAttribute, TableMessage,
    },
    none::ControlMessage,
};
use netlink_sys::protocols::NETLINK_NETFILTER;

pub use self::expr::Expr;
use super::{
    NetlinkError,
    socket::{Connection, OutgoingMessage},
};
use crate::{limit::KernelLimit, netns};

/// `NFNL_SUBSYS_NFTABLES`: the recipient of the messages between the two ends of a batch.
const SUBSYSTEM: u16 = 10;

/// The packets that a table sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    Ip,
    /// IPv6.
    Ip6,
    /// IPv4 and IPv6.
    Inet,
    /// Frames that a bridge forwards.
    Bridge,
}

impl From<Family> for NetfilterProtoFamily {
    fn from(family: Family) -> Self {
        match family {
            Family::Ip => Self::IPv4,
            Family::Ip6 => Self::IPv6,
            Family::Inet => Self::Inet,
            Family::Bridge => Self::Bridge,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ip => "ip",
            Self::Ip6 => "ip6",
            Self::Inet => "inet",
            Self::Bridge => "bridge",
        })
    }
}

/// A table's family and name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table<'a> {
    /// The table's family.
    pub family: Family,
    /// The table's name.
    pub name: &'a str,
}

impl<'a> Table<'a> {
    /// A chain of this table.
    #[must_use]
    pub const fn chain(self, name: &'a str) -> Chain<'a> {
        Chain { table: self, name }
    }
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.family, self.name)
    }
}

/// A chain's table and name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chain<'a> {
    /// The chain's table.
    pub table: Table<'a>,
    /// The chain's name.
    pub name: &'a str,
}

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.table, self.name)
    }
}

/// A point on the packets' way at which base chains are entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// Before routing.
    Prerouting,
    /// Packets to this machine.
    Input,
    /// Packets through this machine.
    Forward,
    /// Packets from this machine.
    Output,
    /// After routing, on the way out.
    Postrouting,
}

impl From<Hook> for HookNumber {
    fn from(hook: Hook) -> Self {
        Self::Inet(match hook {
            Hook::Prerouting => InetHookNumber::PreRouting,
            Hook::Input => InetHookNumber::LocalIn,
            Hook::Forward => InetHookNumber::Forward,
            Hook::Output => InetHookNumber::LocalOut,
            Hook::Postrouting => InetHookNumber::PostRouting,
        })
    }
}

/// The properties of a base chain, one that packets enter by a hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BaseChain {
    /// `filter`, `nat` or `route`.
    pub kind: &'static str,
    /// The hook.
    pub hook: Hook,
    /// The order among the chains of the hook, lowest first; `nft` shows -100 as `dstnat` and 100
    /// as `srcnat`.
    pub priority: i32,
    /// Gives the chain a policy, which is to accept.
    pub policy: bool,
}

/// The place of a new rule in its chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RulePlace {
    /// At the front.
    First,
    /// At the end.
    Last,
    /// In front of the rule with that handle.
    Before(u64),
}

/// The marks by which a rule is found again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Label<'a> {
    /// The comment, which `nft` shows; empty for none.
    pub comment: &'a str,
    /// The tag, which `nft` and other programs ignore; empty for none.
    pub tag: &'a str,
}

/// An existing rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NftRule {
    /// The rule's handle, unique in its table.
    pub handle: u64,
    /// The rule's chain.
    pub chain: String,
    /// The comment; empty if there is none.
    pub comment: String,
    /// The tag; empty if there is none.
    pub tag: String,
    /// The chain that the rule jumps or goes to.
    pub target: Option<String>,
}

/// An existing chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExistingChain {
    /// The chain's name.
    pub name: String,
    /// The comment; empty if there is none.
    pub comment: String,
}

/// Changes that are made together or not at all.
#[derive(Debug, Default)]
pub struct Batch {
    requests: Vec<OutgoingMessage<NetfilterMessage>>,
}

impl Batch {
    /// Returns true if the batch has no changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// The number of changes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    fn push(
        &mut self,
        attempt: fmt::Arguments<'_>,
        family: Family,
        message: NfTablesMessage,
        flags: u16,
    ) {
        self.requests.push(OutgoingMessage {
            attempt: attempt.to_string(),
            limited: KernelLimit::Links,
            message: nftables(family, message),
            flags: NLM_F_REQUEST | flags,
        });
    }

    /// Makes a table unless it exists. An existing table keeps its comment.
    pub fn add_table(&mut self, table: Table<'_>, comment: Option<&str>) {
        let mut attributes = vec![TableAttribute::Name(table.name.to_owned())];
        attributes.extend(comment.map(|text| TableAttribute::UserData(text_data(COMMENT, text))));
        let message = NfTablesMessage::NewTable(TableMessage { attributes });
        self.push(
            format_args!("add table {table}"),
            table.family,
            message,
            NLM_F_CREATE,
        );
    }

    /// Deletes a table with everything in it.
    pub fn delete_table(&mut self, table: Table<'_>) {
        let attributes = vec![TableAttribute::Name(table.name.to_owned())];
        let message = NfTablesMessage::DeleteTable(TableMessage { attributes });
        self.push(
            format_args!("delete table {table}"),
            table.family,
            message,
            0,
        );
    }

    /// Makes a chain unless it exists.
    pub fn add_chain(&mut self, chain: Chain<'_>, base: Option<BaseChain>, comment: Option<&str>) {
        const ACCEPT: u32 = 1;
        let mut attributes = chain_name(chain);
        if let Some(BaseChain {
            kind,
            hook,
            priority,
            policy,
        }) = base
        {
            attributes.push(ChainAttribute::Hook(vec![
                HookAttribute::Number(hook.into()),
                HookAttribute::Priority(priority.cast_unsigned()),
            ]));
            attributes.push(ChainAttribute::Type(kind.to_owned()));
            if policy {
                attributes.push(ChainAttribute::Policy(ACCEPT));
            }
        }
        attributes.extend(comment.map(|text| ChainAttribute::UserData(text_data(COMMENT, text))));
        let message = NfTablesMessage::NewChain(ChainMessage { attributes });
        self.push(
            format_args!("add chain {chain}"),
            chain.table.family,
            message,
            NLM_F_CREATE,
        );
    }

    /// Deletes a chain and its rules. No rule may jump to it after the batch.
    pub fn delete_chain(&mut self, chain: Chain<'_>) {
        let message = NfTablesMessage::DeleteChain(ChainMessage {
            attributes: chain_name(chain),
        });
        self.push(
            format_args!("delete chain {chain}"),
            chain.table.family,
            message,
            0,
        );
    }

    /// Deletes a chain that has no rules and that no rule jumps to. A chain in use fails the batch.
    pub fn delete_unused_chain(&mut self, chain: Chain<'_>) {
        let message = NfTablesMessage::DeleteChain(ChainMessage {
            attributes: chain_name(chain),
        });
        let attempt = format_args!("delete unused chain {chain}");
        self.push(attempt, chain.table.family, message, NLM_F_NONREC);
    }

    /// Deletes a table that has no chains. Any other table fails the batch.
    pub fn delete_unused_table(&mut self, table: Table<'_>) {
        let attributes = vec![TableAttribute::Name(table.name.to_owned())];
        let message = NfTablesMessage::DeleteTable(TableMessage { attributes });
        let attempt = format_args!("delete unused table {table}");
        self.push(attempt, table.family, message, NLM_F_NONREC);
    }

    /// Deletes the rules of a chain.
    pub fn flush_chain(&mut self, chain: Chain<'_>) {
        let message = NfTablesMessage::DeleteRule(RuleMessage {
            attributes: rule_place(chain),
        });
        self.push(
            format_args!("flush chain {chain}"),
            chain.table.family,
            message,
            0,
        );
    }

    /// Adds a rule at the end of a chain.
    pub fn add_rule(&mut self, chain: Chain<'_>, rule: Vec<Expr>, comment: Option<&str>) {
        let comment = comment.unwrap_or_default();
        self.place_rule(chain, rule, RulePlace::Last, Label { comment, tag: "" });
    }

    /// Adds a rule at the front of a chain.
    pub fn insert_rule(&mut self, chain: Chain<'_>, rule: Vec<Expr>, comment: Option<&str>) {
        let comment = comment.unwrap_or_default();
        self.place_rule(chain, rule, RulePlace::First, Label { comment, tag: "" });
    }

    /// Adds a rule at a place, with a label.
    pub fn place_rule(
        &mut self,
        chain: Chain<'_>,
        rule: Vec<Expr>,
        place: RulePlace,
        label: Label<'_>,
    ) {
        let mut attributes = rule_place(chain);
        let flags = match place {
            RulePlace::First => NLM_F_CREATE,
            RulePlace::Last => NLM_F_CREATE | NLM_F_APPEND,
            RulePlace::Before(handle) => {
                attributes.push(RuleAttribute::Position(handle));
                NLM_F_CREATE
            }
        };
        let expressions = rule.into_iter().map(|expr| expr.0.into());
        attributes.push(RuleAttribute::Expressions(expressions.collect()));
        let mut data = Vec::new();
        for (kind, text) in [(COMMENT, label.comment), (TAG, label.tag)] {
            if !text.is_empty() {
                data.extend(text_data(kind, text));
            }
        }
        if !data.is_empty() {
            attributes.push(RuleAttribute::UserData(data));
        }
        let message = NfTablesMessage::NewRule(RuleMessage { attributes });
        self.push(
            format_args!("add rule to chain {chain}"),
            chain.table.family,
            message,
            flags,
        );
    }

    /// Deletes a rule.
    pub fn delete_rule(&mut self, chain: Chain<'_>, handle: u64) {
        let mut attributes = rule_place(chain);
        attributes.push(RuleAttribute::Handle(handle));
        let message = NfTablesMessage::DeleteRule(RuleMessage { attributes });
        let attempt = format_args!("delete rule {handle} of chain {chain}");
        self.push(attempt, chain.table.family, message, 0);
    }
}

/// An nftables socket. It stays in the network namespace it was opened in, whichever thread uses
/// it.
#[derive(Debug)]
pub struct Nft(Connection<NetfilterMessage>);

impl Nft {
    /// Opens a socket in the calling thread's namespace.
    ///
    /// # Errors
    /// [`NetlinkError::Socket`].
    pub fn open() -> Result<Self, NetlinkError> {
        Connection::open(NETLINK_NETFILTER).map(Self)
    }

    /// Opens a socket in another namespace.
    ///
    /// # Errors
    /// [`NetlinkError::Socket`] and [`NetlinkError::Netns`].
    pub fn open_in(netns: &Path) -> Result<Self, NetlinkError> {
        netns::in_netns(netns, Self::open)?
    }

    /// Makes the changes of a batch, all or none.
    ///
    /// # Errors
    /// The first change that failed.
    pub fn apply(&mut self, batch: Batch) -> Result<(), NetlinkError> {
        let Batch { mut requests } = batch;
        // The kernel answers in order after all changes, so the answer to the last one ends the
        // wait.
        let Some(last) = requests.last_mut() else {
            return Ok(());
        };
        last.flags |= NLM_F_ACK;
        let frame = |message| {
            let header = NetfilterHeader::new(NetfilterProtoFamily::Unspec, 0, SUBSYSTEM);
            OutgoingMessage {
                attempt: "change nftables".to_owned(),
                limited: KernelLimit::Links,
                message: NetfilterMessage::new(header, message),
                flags: NLM_F_REQUEST,
            }
        };
        requests.insert(0, frame(ControlMessage::BatchBegin));
        requests.push(frame(ControlMessage::BatchEnd));
        self.0.transact(requests)
    }

    /// The rules of a chain, in order. A missing chain or table has none.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn rules(&mut self, chain: Chain<'_>) -> Result<Vec<NftRule>, NetlinkError> {
        let query = RuleMessage {
            attributes: rule_place(chain),
        };
        let found = self.dump(
            &format!("list rules of chain {chain}"),
            chain.table.family,
            NfTablesMessage::GetRule(query),
        )?;
        let rules = found.into_iter().filter_map(|message| match message {
            NfTablesMessage::NewRule(rule) => decode_rule(rule),
            _ => None,
        });
        Ok(rules.filter(|rule| rule.chain == chain.name).collect())
    }

    /// The chains of a table. A missing table has none.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn chains(&mut self, table: Table<'_>) -> Result<Vec<ExistingChain>, NetlinkError> {
        // The kernel lists the chains of all the family's tables.
        let query = ChainMessage {
            attributes: Vec::new(),
        };
        let found = self.dump(
            &format!("list chains of table {table}"),
            table.family,
            NfTablesMessage::GetChain(query),
        )?;
        let chains = found.into_iter().filter_map(|message| match message {
            NfTablesMessage::NewChain(chain) => decode_chain(table, chain),
            _ => None,
        });
        Ok(chains.collect())
    }

    /// The names of a family's tables.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn tables(&mut self, family: Family) -> Result<Vec<String>, NetlinkError> {
        let query = NfTablesMessage::GetTable(TableMessage {
            attributes: Vec::new(),
        });
        let found = self.dump(&format!("list {family} tables"), family, query)?;
        let tables = found.into_iter().filter_map(|message| match message {
            NfTablesMessage::NewTable(table) => {
                table
                    .attributes
                    .into_iter()
                    .find_map(|attribute| match attribute {
                        TableAttribute::Name(name) => Some(name),
                        _ => None,
                    })
            }
            _ => None,
        });
        Ok(tables.collect())
    }

    fn dump(
        &mut self,
        attempt: &str,
        family: Family,
        query: NfTablesMessage,
    ) -> Result<Vec<NfTablesMessage>, NetlinkError> {
        let found = match self.0.dump(attempt, &nftables(family, query)) {
            Err(error) if error.is_not_found() => Vec::new(),
            other => other?,
        };
        let inner = found.into_iter().filter_map(|message| match message.inner {
            NetfilterMessageInner::NfTables(message) => Some(message),
            _ => None,
        });
        Ok(inner.collect())
    }
}

fn nftables(family: Family, message: NfTablesMessage) -> NetfilterMessage {
    NetfilterMessage::new(NetfilterHeader::new(family.into(), 0, 0), message)
}

fn chain_name(chain: Chain<'_>) -> Vec<ChainAttribute> {
    vec![
        ChainAttribute::Table(chain.table.name.to_owned()),
        ChainAttribute::Name(chain.name.to_owned()),
    ]
}

fn rule_place(chain: Chain<'_>) -> Vec<RuleAttribute> {
    vec![
        RuleAttribute::Table(chain.table.name.to_owned()),
        RuleAttribute::Chain(chain.name.to_owned()),
    ]
}

fn decode_rule(message: RuleMessage) -> Option<NftRule> {
    let mut rule = NftRule {
        handle: 0,
        chain: String::new(),
        comment: String::new(),
        tag: String::new(),
        target: None,
    };
    for attribute in message.attributes {
        match attribute {
            RuleAttribute::Handle(handle) => rule.handle = handle,
            RuleAttribute::Chain(chain) => rule.chain = chain,
            RuleAttribute::UserData(data) => {
                rule.comment = find_text(COMMENT, &data);
                rule.tag = find_text(TAG, &data);
            }
            RuleAttribute::Expressions(list) => {
                rule.target = list.into_iter().find_map(expr::target)
            }
            _ => {}
        }
    }
    (rule.handle != 0).then_some(rule)
}

fn decode_chain(table: Table<'_>, message: ChainMessage) -> Option<ExistingChain> {
    let mut chain = ExistingChain {
        name: String::new(),
        comment: String::new(),
    };
    for attribute in message.attributes {
        match attribute {
            ChainAttribute::Table(name) if name != table.name => return None,
            ChainAttribute::Name(name) => chain.name = name,
            ChainAttribute::UserData(data) => chain.comment = find_text(COMMENT, &data),
            _ => {}
        }
    }
    Some(chain)
}

/// The type of the comment in user data. User data of tables, chains and rules is a list of type,
/// length, value.
const COMMENT: u8 = 0;
/// A type that no other program uses, and that `nft` ignores.
const TAG: u8 = 200;

/// The longest comment that `nft` accepts, in bytes.
pub const MAX_COMMENT: usize = 128;
/// The longest tag, in bytes: the room that is left beside a comment of full length.
pub const MAX_TAG: usize = 120;

fn text_data(kind: u8, text: &str) -> Vec<u8> {
    let mut end = text
        .len()
        .min(if kind == TAG { MAX_TAG } else { MAX_COMMENT });
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let text = &text.as_bytes()[..end];
    let length = u8::try_from(text.len() + 1).unwrap_or(u8::MAX);
    let mut data = vec![kind, length];
    data.extend_from_slice(text);
    data.push(0);
    data
}

fn find_text(wanted: u8, mut data: &[u8]) -> String {
    while let [kind, length, rest @ ..] = data {
        let Some((value, next)) = rest.split_at_checked(usize::from(*length)) else {
            break;
        };
        if *kind == wanted {
            let text = value.strip_suffix(&[0]).unwrap_or(value);
            return String::from_utf8_lossy(text).into_owned();
        }
        data = next;
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_round_trip() {
        let comment = |data: &[u8]| find_text(COMMENT, data);
        let comment_data = |text: &str| text_data(COMMENT, text);
        for text in ["", "a", "net: x, id: ü"] {
            assert_eq!(comment(&comment_data(text)), text);
        }
        let long = "ü".repeat(MAX_COMMENT);
        assert_eq!(comment(&comment_data(&long)), "ü".repeat(MAX_COMMENT / 2));
        let both = [comment_data(&long), text_data(TAG, &long)].concat();
        assert_eq!(find_text(TAG, &both), "ü".repeat(MAX_TAG / 2));
        assert!(both.len() <= 256, "NFT_USERDATA_MAXLEN");
        assert_eq!(
            comment(&[1, 2, 9, 9, 0, 2, b'x', 0]),
            "x",
            "behind another kind"
        );
        for broken in [&[][..], &[0], &[0, 5, 1], &[1, 1, 1]] {
            assert_eq!(comment(broken), "");
        }
    }
}
