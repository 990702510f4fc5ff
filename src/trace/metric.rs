//! Metrics: named numbers of the program at one moment.
//!
//! Metrics are plain values. `server` lists them. It writes the list for `/metrics`, and
//! `wire::otlp` writes the same list for a collector.

use std::borrow::Cow;

use crate::trace::Latency;

/// A metric, with one point for each combination of attributes.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// The name in `/metrics`, without its unit and `_total`. Empty: it is exported only.
    pub name: Cow<'static, str>,
    /// The name for OpenTelemetry. Empty: it is in `/metrics` only.
    pub otel_name: Cow<'static, str>,
    /// A sentence about it.
    pub about: &'static str,
    /// The unit, if it has one.
    pub unit: Option<MetricUnit>,
    /// The kind.
    pub kind: MetricKind,
    /// The numbers.
    pub points: Vec<Point>,
}

/// The unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricUnit {
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
    /// Threads. Their names in `/metrics` do not end with the unit.
    Threads,
    /// Descriptors. Their names in `/metrics` do not end with the unit.
    FileDescriptors,
}

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A number that only grows.
    Counter,
    /// A number that grows and shrinks, and can be added up.
    UpDownCounter,
    /// A number that grows and shrinks.
    Gauge,
    /// A distribution of durations.
    Histogram,
    /// A constant 1. The attributes are the information.
    Info,
}

/// The value of a metric for some attributes.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// The attributes: names and values.
    pub attributes: Vec<(&'static str, Attribute)>,
    /// The value.
    pub value: PointValue,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// A text.
    Text(Cow<'static, str>),
    /// A number.
    Number(u64),
}

/// The value of a point.
#[derive(Clone, Debug, PartialEq)]
pub enum PointValue {
    /// A whole number.
    Whole(u64),
    /// A number of seconds.
    Fraction(f64),
    /// The numbers of a histogram.
    Distribution(Box<Latency>),
}

impl From<&'static str> for Attribute {
    fn from(text: &'static str) -> Attribute {
        Attribute::Text(text.into())
    }
}

impl From<u64> for Attribute {
    fn from(number: u64) -> Attribute {
        Attribute::Number(number)
    }
}

impl From<u64> for PointValue {
    fn from(number: u64) -> PointValue {
        PointValue::Whole(number)
    }
}

impl From<f64> for PointValue {
    fn from(number: f64) -> PointValue {
        PointValue::Fraction(number)
    }
}

impl From<Latency> for PointValue {
    fn from(latency: Latency) -> PointValue {
        PointValue::Distribution(Box::new(latency))
    }
}
