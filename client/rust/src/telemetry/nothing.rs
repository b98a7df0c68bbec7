//! Empty telemetry types, for builds without the feature `opentelemetry`.

#![allow(clippy::unused_self, reason = "with the feature `opentelemetry`, these methods use self")]

use std::future::Future;

use howdah_proto::v1::{NewJob, SettleResult, outcome::Outcome as End};
use tonic::codegen::http::Uri;

use crate::{Enqueued, Job, Outcome, Result};

#[derive(Debug, Clone)]
pub(crate) struct Telemetry;

impl Telemetry {
    pub(crate) fn global() -> Self {
        Self
    }

    pub(crate) fn send(&self, _: &mut [NewJob], _: bool) -> Sending {
        Sending
    }

    pub(crate) fn attempt(&self, _: &Job, _: &Address) -> Attempt {
        Attempt
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Address;

impl Address {
    pub(crate) fn from_uri(_: &Uri) -> Self {
        Self
    }
}

#[derive(Debug)]
pub(crate) struct Sending;

impl Sending {
    pub(crate) fn at(&mut self, _: &Address) {}

    pub(crate) fn ended(&mut self, _: &Result<Vec<Enqueued>>) {}
}

#[derive(Debug)]
pub(crate) struct Attempt;

impl Attempt {
    pub(crate) fn within<F: Future>(&self, handler: F) -> F {
        handler
    }

    pub(crate) fn none() -> Self {
        Self
    }

    pub(crate) fn handled(&mut self, _: &Outcome) {}

    pub(crate) fn settled(&mut self, _: &End, _: Option<&SettleResult>, _: &Address) {}
}
