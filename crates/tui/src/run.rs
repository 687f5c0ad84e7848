//! The program: sources, keys and time go in, pictures and requests come out.

use std::{io, panic, pin::Pin, sync::Arc, time::Duration};

use crossterm::event::{Event as TerminalEvent, EventStream};
use futures::{StreamExt as _, future::OptionFuture};
use ipnet::IpNet;
use podplane_api::pod_ips::PodIpResource;
use podplane_client::Client;
use podplane_host::{clock, task};
use podplane_map::{AddressSpace, MapTarget};
use rustix::process::Signal;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::JoinSet,
};

use crate::{
    app::{App, Effect, Message},
    draw::draw,
    page::Detail,
    source::Sources,
    terminal::{Screen, TerminalError},
    theme::Theme,
    view::View,
};

/// The time between two pictures that no key asked for.
const FRAME: Duration = Duration::from_millis(50);
/// The time after which ages are written anew.
const TICK: Duration = Duration::from_secs(1);

/// The texts that commands print about an object.
pub trait Details: Send + Sync + 'static {
    /// The text, without colours, or the error for the page.
    fn load(&self, detail: Detail) -> impl Future<Output = Result<String, String>> + Send;
}

/// The cluster, and how it is shown.
#[derive(Clone, Debug)]
pub struct TopSettings {
    /// The client of the cluster's API server.
    pub client: Client,
    /// The name of the server, for the title.
    pub server: String,
    /// The namespace whose pods and events are read; `None` for all.
    pub namespace: Option<String>,
    /// The resource by which pods request addresses.
    pub resource: PodIpResource,
    /// The ranges of pods that no object of the cluster names.
    pub cluster_cidrs: Vec<IpNet>,
    /// The view at the beginning.
    pub view: View,
    /// The part with which the map begins if it is the first view.
    pub part: Option<MapTarget>,
    /// The use of colours.
    pub theme: Theme,
}

/// An address space that does not change, and how it is shown.
#[derive(Clone, Debug)]
pub struct MapSettings {
    /// The address space.
    pub space: Arc<AddressSpace>,
    /// The name of its source, for the title.
    pub source: String,
    /// The part with which the map begins.
    pub part: Option<MapTarget>,
    /// The use of colours.
    pub theme: Theme,
}

/// The reason of the program's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The user asked for it.
    ByUser,
    /// A signal, by its number.
    BySignal(i32),
}

/// Shows a cluster until the user quits. Needs a tokio runtime of several threads: a large list is
/// decoded beside the keys.
///
/// # Errors
///
/// [`TerminalError`]. An unreachable server is shown, and is no error.
pub async fn run<D: Details>(settings: TopSettings, details: D) -> Result<Ended, TerminalError> {
    let screen = Screen::open()?;
    let TopSettings {
        client,
        server,
        namespace,
        resource,
        cluster_cidrs,
        view,
        part,
        theme,
    } = settings;
    let (sender, messages) = unbounded_channel();
    let sources = Sources::new(
        client,
        namespace.clone(),
        resource,
        &cluster_cidrs,
        sender.clone(),
    );
    let size = Screen::size()?;
    let (mut app, effects) = App::new(view, namespace, &server, size, clock::timestamp());
    app.start_with(part);
    let mut program = Program {
        app,
        screen,
        theme,
        surroundings: Some(Surroundings {
            sources,
            details: Arc::new(details),
            sender,
        }),
        tasks: JoinSet::new(),
    };
    match program.carry_out(effects)? {
        Some(ended) => Ok(ended),
        None => program.run(messages).await,
    }
}

/// Shows the map of an address space that does not change until the user quits.
///
/// # Errors
///
/// [`TerminalError`].
pub async fn run_map(settings: MapSettings) -> Result<Ended, TerminalError> {
    let screen = Screen::open()?;
    let MapSettings {
        space,
        source,
        part,
        theme,
    } = settings;
    let mut app = App::of_space(space, &source, Screen::size()?, clock::timestamp());
    app.start_with(part);
    let mut program = Program::<NoDetails> {
        app,
        screen,
        theme,
        surroundings: None,
        tasks: JoinSet::new(),
    };
    let (_sender, messages) = unbounded_channel();
    program.run(messages).await
}

/// The texts of a program that has none.
enum NoDetails {}

impl Details for NoDetails {
    async fn load(&self, _: Detail) -> Result<String, String> {
        match *self {}
    }
}

struct Program<D> {
    app: App,
    screen: Screen,
    theme: Theme,
    /// `None` for an address space that does not change: the program asks for nothing.
    surroundings: Option<Surroundings<D>>,
    /// Ended with the program.
    tasks: JoinSet<()>,
}

/// The cluster.
struct Surroundings<D> {
    sources: Sources,
    details: Arc<D>,
    sender: UnboundedSender<Message>,
}

impl<D: Details> Program<D> {
    async fn run(
        &mut self,
        mut messages: UnboundedReceiver<Message>,
    ) -> Result<Ended, TerminalError> {
        let mut keys = EventStream::new();
        let mut ticks = clock::interval(TICK);
        // Ctrl-C and Ctrl-\ are keys here, but other programs send these signals, too.
        let mut interrupted = signal(SignalKind::interrupt())?;
        let mut quit = signal(SignalKind::quit())?;
        let mut terminated = signal(SignalKind::terminate())?;
        let mut hung_up = signal(SignalKind::hangup())?;
        // The time of the next picture, if something has changed since the last one.
        let mut frame: Option<Pin<Box<_>>> = None;
        loop {
            // Losing any of these waits loses nothing.
            let is_urgent = tokio::select! {
                event = keys.next() => {
                    match event {
                        Some(event) => self.take_in(event?),
                        None => return Ok(Ended::ByUser),
                    }
                    true
                }
                Some(message) = messages.recv() => {
                    self.app.update(message);
                    while let Ok(message) = messages.try_recv() {
                        self.app.update(message);
                    }
                    false
                }
                Some(()) = OptionFuture::from(frame.as_mut()) => true,
                _ = ticks.tick() => {
                    self.app.update(Message::Tick(clock::timestamp()));
                    true
                }
                Some(ended) = self.tasks.join_next() => {
                    if let Err(error) = ended
                        && let Ok(panicked) = error.try_into_panic()
                    {
                        panic::resume_unwind(panicked);
                    }
                    false
                }
                _ = interrupted.recv() => return Ok(Ended::BySignal(Signal::INT.as_raw())),
                _ = quit.recv() => return Ok(Ended::BySignal(Signal::QUIT.as_raw())),
                _ = terminated.recv() => return Ok(Ended::BySignal(Signal::TERM.as_raw())),
                _ = hung_up.recv() => return Ok(Ended::BySignal(Signal::HUP.as_raw())),
            };
            if !is_urgent {
                frame.get_or_insert_with(|| Box::pin(clock::sleep(FRAME)));
                continue;
            }
            frame = None;
            let effects = self.app.settle();
            if let Some(ended) = self.carry_out(effects)? {
                return Ok(ended);
            }
            let (app, theme) = (&self.app, self.theme);
            self.screen.draw(|frame| draw(app, frame, theme))?;
        }
    }

    fn take_in(&mut self, event: TerminalEvent) {
        match event {
            TerminalEvent::Key(key) => self.app.update(Message::Key(key)),
            TerminalEvent::Resize(columns, rows) => {
                self.app.update(Message::Resize(columns, rows));
            }
            _ => {}
        }
    }

    fn carry_out(&mut self, effects: Vec<Effect>) -> io::Result<Option<Ended>> {
        for effect in effects {
            match effect {
                Effect::Suspend => self.screen.suspend()?,
                Effect::Quit => return Ok(Some(Ended::ByUser)),
                effect => {
                    if let Some(surroundings) = &self.surroundings {
                        surroundings.ask(effect, &mut self.tasks);
                    }
                }
            }
        }
        Ok(None)
    }
}

impl<D: Details> Surroundings<D> {
    /// Does what needs the cluster, whose answers come as messages.
    fn ask(&self, effect: Effect, tasks: &mut JoinSet<()>) {
        match effect {
            Effect::Follow(source) => {
                task::spawn(tasks, self.sources.clone().follow(source));
            }
            Effect::Load(detail) => {
                let (details, sender) = (self.details.clone(), self.sender.clone());
                task::spawn(tasks, async move {
                    let text = details.load(detail.clone()).await;
                    // Nobody listens any more when the program ends.
                    let _ = sender.send(Message::Loaded(detail, text));
                });
            }
            Effect::MeasureSpace => {
                let sources = self.sources.clone();
                drop(task::spawn_blocking(move || sources.measure_space()));
            }
            Effect::CheckNamespace(name) => {
                task::spawn(tasks, self.sources.clone().check_namespace(name));
            }
            Effect::Suspend | Effect::Quit => {}
        }
    }
}
