//! The guard of the leader: feeds the pods of the watch to [`BindGuard`], and asks it about
//! bindings.
//!
//! One task owns the guard. It applies all changes that the watch has shown before each decision.

use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use podplane_api::{
    ObjectKey,
    core::{Node, Pod},
    pod_ips::PodIpResource,
};
use podplane_client::{ApiError, Cache, CacheChange, Changes, Client, ListParams, answered};
use podplane_host::clock::{self, Instant};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    guard::{BindDecision, BindGuard, BindRequest, DueReservation, PodRead},
    metrics::WebhookMetrics,
    pod::PodAddresses,
};

/// The most questions that wait. Further ones wait with their request, which has a deadline.
const QUESTIONS: usize = 64;
/// The most pods that are read at once because their reservations are due.
const READS: usize = 16;
/// The time between two looks for reservations that are due.
const LOOK: Duration = Duration::from_secs(1);
/// The time for which a leader that stops waits until the watch has shown its bindings. It is less
/// than the time in which the tasks of a process must end.
const HANDOVER: Duration = Duration::from_secs(3);

/// A binding to decide about, and where the answer goes.
#[derive(Debug)]
pub struct Question {
    request: BindRequest,
    read: Option<PodRead>,
    answer: oneshot::Sender<BindDecision>,
}

/// The reason why there is no decision.
#[derive(Debug, thiserror::Error)]
pub enum Undecided {
    /// The process does not lead, or its cache is not complete yet.
    #[error("this replica does not lead: ask again")]
    NotLeading,
    /// The pod of the binding could not be read.
    #[error("failed to read the pod of the binding")]
    Read(#[source] ApiError),
}

/// Asks the guard of this process, if it leads. Clones ask the same one.
#[derive(Clone, Debug)]
pub struct GuardHandle {
    client: Client,
    resource: PodIpResource,
    leader: watch::Receiver<Option<mpsc::Sender<Question>>>,
}

impl GuardHandle {
    /// Decides about a binding.
    ///
    /// # Errors
    ///
    /// [`Undecided`]. The caller may ask again.
    ///
    /// # Cancel safety
    ///
    /// A question that is dropped before it is decided reserves nothing.
    pub async fn decide(&self, request: BindRequest) -> Result<BindDecision, Undecided> {
        let decision = self.ask(&request, None).await?;
        if decision != BindDecision::UnknownPod {
            return Ok(decision);
        }
        let read = read(&self.client, &self.resource, &request.pod).await;
        self.ask(&request, Some(read.map_err(Undecided::Read)?))
            .await
    }

    async fn ask(
        &self,
        request: &BindRequest,
        read: Option<PodRead>,
    ) -> Result<BindDecision, Undecided> {
        let leader = self.leader.borrow().clone();
        let leader = leader.ok_or(Undecided::NotLeading)?;
        let (answer, answered) = oneshot::channel();
        let question = Question {
            request: request.clone(),
            read,
            answer,
        };
        let sent = leader.send(question).await;
        sent.map_err(|_| Undecided::NotLeading)?;
        answered.await.map_err(|_| Undecided::NotLeading)
    }
}

async fn read(
    client: &Client,
    resource: &PodIpResource,
    pod: &ObjectKey,
) -> Result<PodRead, ApiError> {
    let pods = client.namespaced::<Pod>(pod.namespace.as_str());
    match pods.get(&pod.name).await {
        Ok(pod) => Ok(PodRead::Found(PodAddresses::of(&pod, resource))),
        Err(error) if error.is_not_found() => Ok(PodRead::Gone),
        Err(error) => Err(error),
    }
}

/// The guard's surroundings: what it reads, and who asks.
#[derive(Debug)]
pub struct GuardDriver {
    /// The client for lists and reads.
    pub client: Client,
    /// The resource that counts addresses.
    pub resource: PodIpResource,
    /// The pods.
    pub pods: Cache<PodAddresses>,
    /// The nodes.
    pub nodes: Cache<Node>,
    /// The time after which a binding that was allowed has been carried out or dropped.
    pub limit: Duration,
    /// The metrics.
    pub metrics: WebhookMetrics,
    leader: watch::Sender<Option<mpsc::Sender<Question>>>,
}

impl GuardDriver {
    /// A guard of these caches, which answers once it [leads](Self::lead).
    pub fn new(
        client: Client,
        resource: PodIpResource,
        (pods, nodes): (Cache<PodAddresses>, Cache<Node>),
        limit: Duration,
        metrics: WebhookMetrics,
    ) -> Self {
        Self {
            client,
            resource,
            pods,
            nodes,
            limit,
            metrics,
            leader: watch::Sender::new(None),
        }
    }

    /// The handle to ask the guard.
    pub fn handle(&self) -> GuardHandle {
        GuardHandle {
            client: self.client.clone(),
            resource: self.resource.clone(),
            leader: self.leader.subscribe(),
        }
    }

    /// Completes when the guard answers.
    pub fn leading(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut leader = self.leader.subscribe();
        async move {
            if leader.wait_for(Option::is_some).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Guards bindings until `stop`. The caller leads, so nobody else allows bindings meanwhile.
    pub async fn lead(&self, stop: &CancellationToken) {
        // Cancelling this loses nothing: nobody asks yet.
        let Some(mut term) = stop.run_until_cancelled(self.begin()).await else {
            return;
        };
        let (questions, asked) = mpsc::channel(QUESTIONS);
        self.leader.send_replace(Some(questions));
        term.run(asked, stop).await;
        tracing::info!("stopped guarding bindings");
    }

    /// Takes over from another leader: the bindings that it allowed and that the API server has
    /// carried out are in a list that begins now, whatever the watch has shown.
    async fn begin(&self) -> GuardTerm<'_> {
        self.pods.synced().await;
        self.nodes.synced().await;
        let mut waits = ExponentialBuilder::new()
            .with_min_delay(Duration::from_millis(100))
            .with_max_delay(Duration::from_secs(2))
            .with_jitter()
            .without_max_times()
            .build();
        let list = loop {
            let pods = self.client.all::<Pod>();
            match answered(pods.list(&ListParams::default())).await {
                Ok(list) => break list,
                Err(error) => {
                    let retry_in = waits.next().unwrap_or_default();
                    tracing::warn!(%error, ?retry_in, "failed to list pods; trying again");
                    clock::sleep(retry_in).await;
                }
            }
        };
        let resource = &self.resource;
        let pods = list.items.iter();
        let pods: Vec<_> = pods.map(|pod| PodAddresses::of(pod, resource)).collect();
        let mut term = GuardTerm {
            driver: self,
            changes: self.pods.subscribe(),
            guard: BindGuard::new(self.limit),
        };
        term.drain();
        let adopted = term.guard.adopt(&pods, Instant::now());
        tracing::info!(pods = pods.len(), adopted, "guarding bindings");
        term
    }
}

/// The guard while its process leads.
struct GuardTerm<'a> {
    driver: &'a GuardDriver,
    changes: Changes<PodAddresses>,
    guard: BindGuard,
}

type DueRead = BoxFuture<'static, (DueReservation, Result<PodRead, ApiError>)>;

impl GuardTerm<'_> {
    /// Answers until `stop`, then waits for a while until the watch has shown all bindings that were
    /// allowed: the next leader may begin at once then.
    async fn run(&mut self, mut asked: mpsc::Receiver<Question>, stop: &CancellationToken) {
        let mut looks = clock::interval(LOOK);
        let mut reads = FuturesUnordered::<DueRead>::new();
        let mut end = None;
        loop {
            self.drain();
            self.driver.metrics.reservations(self.guard.reservations());
            let is_over = end.is_some_and(|end| Instant::now() >= end);
            if end.is_some() && (is_over || self.guard.reservations() == 0) {
                return;
            }
            // Each arm takes one message, which is not lost if another arm is first, and none waits.
            tokio::select! {
                biased;
                () = stop.cancelled(), if end.is_none() => {
                    self.driver.leader.send_replace(None);
                    asked.close();
                    end = Some(Instant::now() + HANDOVER);
                }
                change = self.changes.next() => self.apply(change),
                Some(question) = asked.recv() => self.answer(question),
                Some((due, read)) = reads.next() => match read {
                    Ok(read) => self.guard.settle(&due, &read),
                    Err(error) => {
                        let DueReservation { pod, node, .. } = due;
                        tracing::debug!(%pod, %node, %error, "failed to read a pod; trying again");
                    }
                },
                _ = looks.tick() => {
                    let count = READS.saturating_sub(reads.len());
                    let due = self.guard.due(Instant::now(), count);
                    reads.extend(due.into_iter().map(|due| self.read(due)));
                }
            }
        }
    }

    fn read(&self, due: DueReservation) -> DueRead {
        let client = self.driver.client.clone();
        let resource = self.driver.resource.clone();
        async move {
            let read = answered(read(&client, &resource, &due.pod)).await;
            (due, read)
        }
        .boxed()
    }

    fn drain(&mut self) {
        while let Some(change) = self.changes.try_next() {
            self.apply(change);
        }
    }

    fn apply(&mut self, change: CacheChange<PodAddresses>) {
        match change {
            CacheChange::Applied { new, .. } => self.guard.apply(&new),
            CacheChange::Deleted(pod) => self.guard.forget(&pod),
        }
    }

    fn answer(&mut self, question: Question) {
        let Question {
            request,
            read,
            answer,
        } = question;
        // A request that waited too long was answered.
        if answer.is_closed() {
            return;
        }
        let node = self.driver.nodes.get(&ObjectKey::new("", &*request.node));
        let report = node.map(|node| self.driver.resource.report(&node));
        let decision = self
            .guard
            .decide(&request, report.as_ref(), read.as_ref(), Instant::now());
        // An error means that the request was answered meanwhile. What was reserved for it is
        // settled when it is due.
        _ = answer.send(decision);
    }
}
