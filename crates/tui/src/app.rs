//! The state of the program: messages change it, and tell what is to be done outside.
//!
//! Nothing here does I/O or reads a clock: the time comes with [`Message::Tick`].

mod keys;
mod space;

use std::{collections::BTreeSet, sync::Arc};

use crossterm::event::KeyEvent;
use podplane_api::jiff::Timestamp;
use podplane_map::{AddressSpace, MapTarget, PodRule, TextSize};

use crate::{
    cluster::{BlockRecords, Change, Cluster, Health, Source, SourceFailure},
    command::Command,
    facts::{EventFact, NodeFact, PodFact},
    map::MapScreen,
    page::{Detail, DetailKind, Page},
    row::{Subject, Target},
    scope::Scope,
    table::Table,
    view::View,
};
pub(crate) use space::SpaceState;

/// The rows above a table: title, keys, actions and the names of its columns.
pub(crate) const TABLE_HEAD: u16 = 4;
/// The rows above a page of text.
pub(crate) const PAGE_HEAD: u16 = 3;
/// The rows below: the line of messages.
pub(crate) const FOOT: u16 = 1;

/// The answer to keys that need a cluster, where there is none.
const ONLY_MAP: &str = "only the map is known here: --server and --kubeconfig show a live cluster";

/// An input of the program.
#[derive(Debug)]
pub enum Message {
    /// Nodes changed.
    Nodes(Change<NodeFact>),
    /// Pods changed.
    Pods(Change<PodFact>),
    /// Events changed.
    Events(Change<EventFact>),
    /// The records of blocks; `None` if the cluster keeps none.
    Blocks(Result<Option<BlockRecords>, SourceFailure>),
    /// The networks of the map changed, or are not known.
    Networks(Result<(), SourceFailure>),
    /// The rule about the addresses of pods is another one.
    Rule(PodRule),
    /// The address space of the map.
    Space(Arc<AddressSpace>),
    /// A namespace that was asked for exists, or does not.
    Namespace {
        /// Its name.
        name: String,
        /// True if it is there.
        exists: bool,
    },
    /// A page has been loaded.
    Loaded(Detail, Result<String, String>),
    /// A key was pressed.
    Key(KeyEvent),
    /// The terminal has another size: columns and rows.
    Resize(u16, u16),
    /// The time has gone on.
    Tick(Timestamp),
}

/// A request of the program to its surroundings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Follow this source from now on.
    Follow(Source),
    /// Load the text of a page, and answer with [`Message::Loaded`].
    Load(Detail),
    /// Answer with [`Message::Space`].
    MeasureSpace,
    /// Answer with [`Message::Namespace`] about this one.
    CheckNamespace(String),
    /// Stop the process until it is continued, as a shell does with Ctrl-Z.
    Suspend,
    /// End.
    Quit,
}

/// The content of the screen.
pub(crate) enum Screen {
    Table(Box<dyn Table + Send>),
    Map(MapScreen),
    Page(Page),
}

/// A line that is being typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prompt {
    pub(crate) kind: PromptKind,
    pub(crate) text: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PromptKind {
    /// A command.
    Command,
    /// A filter; the one before comes back with Esc.
    Filter { before: String },
}

/// The state of the program.
pub struct App {
    pub(crate) cluster: Cluster,
    pub(crate) space: SpaceState,
    /// The last one is shown; Esc goes back to the one before. Never empty.
    stack: Vec<Screen>,
    pub(crate) prompt: Option<Prompt>,
    /// The answer to the last key, until the next one.
    pub(crate) notice: Option<String>,
    pub(crate) now: Timestamp,
    pub(crate) size: (u16, u16),
    /// The name of the server, for the title.
    pub(crate) server: String,
    /// True for an address space that does not change, of which nothing but the map is known.
    pub(crate) is_fixed: bool,
    /// The only namespace whose pods and events are read; `None` for all.
    pub(crate) namespace: Option<String>,
    /// The namespaces that a view shows and that do not exist, as far as is known.
    pub(crate) missing_namespaces: BTreeSet<String>,
    effects: Vec<Effect>,
}

impl App {
    /// The program with a view, and what is to be done at its beginning. `namespace` is the only
    /// one whose pods and events are read; `server` is the name of the cluster or of its server.
    pub fn new(
        view: View,
        namespace: Option<String>,
        server: &str,
        size: (u16, u16),
        now: Timestamp,
    ) -> (Self, Vec<Effect>) {
        let mut app = Self::empty(server, size, now);
        let check = namespace.iter().cloned().map(Effect::CheckNamespace);
        app.effects.extend(check);
        app.namespace = namespace;
        app.follow(&[Source::Nodes, Source::Pods]);
        app.show(view, app.whole());
        let effects = app.settle();
        (app, effects)
    }

    /// The map of an address space that does not change, such as that of a dump, whose name is
    /// `server`. Everything but the map is refused, with a notice.
    pub fn of_space(
        space: Arc<AddressSpace>,
        server: &str,
        size: (u16, u16),
        now: Timestamp,
    ) -> Self {
        let mut app = Self::empty(server, size, now);
        app.is_fixed = true;
        app.space.set(space, now);
        app.stack.push(Screen::Map(MapScreen::default()));
        app
    }

    fn empty(server: &str, size: (u16, u16), now: Timestamp) -> Self {
        Self {
            cluster: Cluster::default(),
            space: SpaceState::default(),
            stack: Vec::new(),
            prompt: None,
            notice: None,
            now,
            size,
            server: server.to_owned(),
            is_fixed: false,
            namespace: None,
            missing_namespaces: BTreeSet::new(),
            effects: Vec::new(),
        }
    }

    /// Lets the map begin with a part, if it is what is shown.
    pub fn start_with(&mut self, part: Option<MapTarget>) {
        if let Some(Screen::Map(map)) = self.stack.last_mut() {
            *map = MapScreen::new(part);
        }
    }

    /// Takes in a message. Its consequences for the screen come with [`settle`](Self::settle).
    pub fn update(&mut self, message: Message) {
        match message {
            Message::Nodes(change) => self.cluster.change_nodes(change, self.now),
            Message::Pods(change) => self.cluster.change_pods(change, self.now),
            Message::Events(change) => self.cluster.change_events(change, self.now),
            Message::Blocks(blocks) => self.cluster.set_blocks(blocks, self.now),
            Message::Networks(change) => self.cluster.change_networks(change, self.now),
            Message::Rule(rule) => self.cluster.set_rule(rule),
            Message::Namespace { name, exists } => {
                match exists {
                    true => self.missing_namespaces.remove(&name),
                    false => self.missing_namespaces.insert(name),
                };
            }
            Message::Space(space) => self.space.set(space, self.now),
            Message::Loaded(detail, answer) => self.set_page(&detail, answer),
            Message::Key(key) => self.press(key),
            Message::Resize(columns, rows) => self.size = (columns, rows),
            Message::Tick(now) => self.now = now,
        }
    }

    /// Brings the screen up to date after messages, and returns what is to be done.
    pub fn settle(&mut self) -> Vec<Effect> {
        let height = self.table_height();
        let (cluster, now) = (&self.cluster, self.now);
        match self.stack.last_mut() {
            Some(Screen::Table(table)) => {
                table.refresh(cluster, now);
                table.reveal(height);
            }
            Some(Screen::Map(_)) => {
                if !self.is_fixed && self.space.wants(cluster, now) {
                    self.effects.push(Effect::MeasureSpace);
                }
            }
            Some(Screen::Page(_)) | None => {}
        }
        std::mem::take(&mut self.effects)
    }

    pub(crate) fn screen(&self) -> Option<&Screen> {
        self.stack.last()
    }

    /// The rows of a table that have room.
    pub(crate) fn table_height(&self) -> usize {
        usize::from(self.size.1.saturating_sub(TABLE_HEAD + FOOT))
    }

    /// The lines of a page that have room.
    pub(crate) fn page_height(&self) -> usize {
        usize::from(self.size.1.saturating_sub(PAGE_HEAD + FOOT))
    }

    /// The size of the map above the line of messages; `None` if the terminal is too small.
    pub(crate) fn map_size(&self) -> Option<TextSize> {
        TextSize::new(self.size.0, self.size.1.saturating_sub(FOOT)).ok()
    }

    /// The worst state of the sources that are followed, if one is not up to date.
    pub(crate) fn lost(&self) -> Option<(Timestamp, &str)> {
        let each = Source::ALL.into_iter();
        let lost = each.filter_map(|source| match self.cluster.health(source) {
            Health::Lost { since, error } => Some((*since, error.as_str())),
            _ => None,
        });
        lost.min_by_key(|(since, _)| *since)
    }

    fn follow(&mut self, sources: &[Source]) {
        for source in sources {
            if *self.cluster.health(*source) == Health::Unused {
                self.cluster.begin(*source);
                self.effects.push(Effect::Follow(*source));
            }
        }
    }

    /// Everything that is read.
    fn whole(&self) -> Scope {
        self.namespace.clone().map_or(Scope::All, Scope::Namespace)
    }

    /// Shows a view over the tables and the map that were shown, so that Esc goes back to them; it
    /// is there once.
    fn show(&mut self, view: View, scope: Scope) {
        if self.is_known(view) {
            self.stack.retain(|screen| match screen {
                Screen::Table(table) => table.name() != view.as_str() || *table.scope() != scope,
                Screen::Map(_) => view != View::Map,
                Screen::Page(_) => false,
            });
            self.open(view, scope);
        }
    }

    /// Returns true if a view has content, and else says that it has none.
    fn is_known(&mut self, view: View) -> bool {
        let is_known = !self.is_fixed || view == View::Map;
        if !is_known {
            self.notice = Some(ONLY_MAP.to_owned());
        }
        is_known
    }

    /// Shows a view over what is shown.
    fn open(&mut self, view: View, scope: Scope) {
        let screen = match view.table(scope) {
            Some(table) => {
                self.follow(table.sources());
                Screen::Table(table)
            }
            None => {
                self.follow(SpaceState::SOURCES);
                Screen::Map(MapScreen::default())
            }
        };
        self.stack.push(screen);
    }

    fn open_target(&mut self, target: Target) {
        match target {
            Target::Pods(scope) if self.is_known(View::Pods) => self.open(View::Pods, scope),
            Target::Pods(_) => {}
            Target::Description(subject) => self.open_page(DetailKind::Description, subject),
        }
    }

    fn open_page(&mut self, kind: DetailKind, subject: Subject) {
        if self.is_fixed {
            self.notice = Some(ONLY_MAP.to_owned());
            return;
        }
        let is_of_pods = matches!(kind, DetailKind::Trace | DetailKind::Explanation);
        if is_of_pods && matches!(subject, Subject::Node(_)) {
            self.notice = Some("only pods have a trace and an explanation".to_owned());
            return;
        }
        let detail = Detail { kind, subject };
        self.effects.push(Effect::Load(detail.clone()));
        self.stack.push(Screen::Page(Page::loading(detail)));
    }

    fn set_page(&mut self, detail: &Detail, answer: Result<String, String>) {
        let pages = self.stack.iter_mut().filter_map(|screen| match screen {
            Screen::Page(page) if page.detail() == Some(detail) => Some(page),
            _ => None,
        });
        let answer = answer.as_deref().map_err(String::as_str);
        pages.for_each(|page| page.set(answer));
    }

    fn run_command(&mut self, text: &str) {
        match Command::parse(text) {
            Ok(None) => {}
            Ok(Some(Command::Quit)) => self.effects.push(Effect::Quit),
            Ok(Some(Command::Help)) => self.open_help(),
            Ok(Some(Command::Show { view, namespace })) => match (&self.namespace, namespace) {
                (Some(only), Some(other)) if *only != other => {
                    self.notice = Some(format!("only namespace {only} is read: see --namespace"));
                }
                (_, Some(namespace)) => {
                    if self.is_known(view) {
                        let check = Effect::CheckNamespace(namespace.clone());
                        self.effects.push(check);
                    }
                    self.show(view, Scope::Namespace(namespace));
                }
                (_, None) => self.show(view, self.whole()),
            },
            Err(error) => self.notice = Some(error.to_string()),
        }
    }

    fn open_help(&mut self) {
        let is_open =
            |screen: &Screen| matches!(screen, Screen::Page(page) if page.detail().is_none());
        if !self.stack.last().is_some_and(is_open) {
            self.stack
                .push(Screen::Page(Page::help(include_str!("help.txt"))));
        }
    }

    /// Goes back to the screen before. The first one stays.
    fn back(&mut self) {
        if self.stack.len() > 1 {
            self.stack.pop();
        }
    }
}

impl std::fmt::Debug for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("App")
            .field("screens", &self.stack.len())
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}
