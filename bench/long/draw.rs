//! A drawing of a soak: memory over executions, as SVG.

use std::fmt::Write as _;

use super::sample::Sample;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 480.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 178.0;
const TOP: f64 = 42.0;
const BOTTOM: f64 = 48.0;
/// Number of grid lines in each direction.
const GRID: u32 = 5;

/// A line: its name, its colour, its value in KiB.
type Line = (&'static str, &'static str, fn(&Sample) -> u64);

const LINES: [Line; 4] = [
    ("resident", "#c2255c", |sample| sample.rss_kib),
    ("anonymous", "#1971c2", |sample| sample.anonymous_kib),
    ("shared", "#2f9e44", |sample| sample.shared_kib),
    ("rings bought", "#495057", |sample| sample.rings_kib),
];

/// Returns all samples as an SVG document.
pub fn drawing(title: &str, samples: &[Sample]) -> String {
    let values = samples.iter().flat_map(|sample| LINES.map(|(_, _, value)| value(sample)));
    let most_kib = values.max().unwrap_or(0).max(1) as f64 * 1.05;
    let most_executions = samples.iter().map(|sample| sample.executions).max().unwrap_or(0).max(1);
    let x = |executions: f64| LEFT + executions / most_executions as f64 * (WIDTH - LEFT - RIGHT);
    let y = |kib: f64| HEIGHT - BOTTOM - kib / most_kib * (HEIGHT - TOP - BOTTOM);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"24\" font-size=\"15\">{title}</text>\n"
    );
    for step in 0..=GRID {
        let part = f64::from(step) / f64::from(GRID);
        let (kib, executions) = (most_kib * part, most_executions as f64 * part);
        let (across, up) = (x(executions), y(kib));
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        let _ = writeln!(
            out,
            "<path d=\"M{LEFT} {up:.1}H{right}M{across:.1} {TOP}V{bottom}\" stroke=\"#dee2e6\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{:.1} MiB</text>\
             <text x=\"{across:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{executions:.0}</text>",
            LEFT - 6.0,
            up + 4.0,
            kib / 1_024.0,
            bottom + 18.0
        );
    }
    for (index, (name, colour, value)) in LINES.iter().enumerate() {
        let points = samples.iter().map(|sample| {
            format!("{:.1},{:.1}", x(sample.executions as f64), y(value(sample) as f64))
        });
        let points: Vec<String> = points.collect();
        let _ = writeln!(
            out,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\" points=\"{}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{name}</text>",
            points.join(" "),
            WIDTH - RIGHT + 12.0,
            TOP + 18.0 * (index as f64 + 1.0)
        );
    }
    out + "</svg>\n"
}
