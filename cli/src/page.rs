//! A listener on this machine that serves the page to one user (docs/ui.md, ADR 0077).
//!
//! Cookies are not separated by port: a page of another program of this machine would get those of
//! `127.0.0.1` and `localhost`. So each listener has a host of its own under `.localhost`, which
//! browsers resolve to this machine, and answers under no other name.

mod browser;
mod host;
mod listeners;
mod login;

use std::{convert::Infallible, sync::Arc, time::Duration};

use anyhow::Context as _;
use axum::{
    Router,
    body::Body,
    middleware,
    response::{IntoResponse, Response},
};
use futures::future::select_all;
use http::{HeaderValue, StatusCode, header};
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use podplane_service_runtime::boundary::failure_status;
use podplane_ui::Session;
use tokio::{net::TcpListener, task::JoinSet};

use self::{host::PageHost, login::Login};
use crate::output;

/// The pause after a connection that could not be accepted.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// The way in which the page is opened.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PageArgs {
    /// Listen on this port of 127.0.0.1 and ::1 [default: any free one]
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,

    /// Print the address of the page, and open no browser
    #[arg(long)]
    no_open: bool,
}

impl PageArgs {
    /// Returns true if one of the flags is given.
    pub(crate) fn is_given(&self) -> bool {
        self.port.is_some() || self.no_open
    }
}

/// Serves the page and its data until the process is interrupted.
///
/// # Errors
///
/// The port cannot be used.
pub(crate) async fn serve(args: &PageArgs, session: Session, data: Router) -> anyhow::Result<()> {
    let (port, listeners) = listeners::bind(args.port).await?;
    let host = Arc::new(PageHost::new(port));
    let login = Arc::new(Login::new(Arc::clone(&host), session));
    let routes = data
        .merge(podplane_ui::router())
        .layer(middleware::from_fn_with_state(
            Arc::clone(&login),
            login::require,
        ))
        .merge(login::routes(Arc::clone(&login)))
        .layer(middleware::from_fn_with_state(host, host::require));
    let url = login.offer();
    output::line(format_args!("{url}"))?;
    let _opened = if args.no_open {
        None
    } else {
        browser::open(&url)
    };
    let accepting = listeners
        .into_iter()
        .map(|listener| Box::pin(accept(listener, routes.clone())));
    // The connections end with the process: nothing is lost, and streams have no end.
    tokio::select! {
        (never, ..) = select_all(accepting) => match never {},
        interrupted = tokio::signal::ctrl_c() => {
            interrupted.context("failed to wait for an interrupt")
        }
    }
}

async fn accept(listener: TcpListener, routes: Router) -> Infallible {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                // The client has gone again, or there are too many files: others may succeed.
                let Ok((stream, _)) = accepted else {
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                    continue;
                };
                let service = TowerToHyperService::new(routes.clone());
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                connections.spawn(connection);
            }
            Some(_ended) = connections.join_next() => {}
        }
    }
}

/// A refusal as Kubernetes' `Status`.
pub(crate) fn refusal(code: StatusCode, reason: &str, message: &str) -> Response {
    let status = failure_status(code, reason, message);
    let mut answer = document(status.to_string());
    *answer.status_mut() = code;
    answer
}

/// A document that nobody keeps.
pub(crate) fn document(json: impl Into<Body>) -> Response {
    let headers = [
        (
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        ),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        ),
    ];
    (headers, json.into()).into_response()
}
