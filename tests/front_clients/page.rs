//! The example page, `tools/web`. It is built with npm. A headless Chromium shows text and a
//! growing output before the run is over.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, thread};

use serde_json::Value;

use crate::installed::{self, Missing};
use crate::real::SCRIPT;
use crate::scripted::ModelServer;
use crate::served::Server;
use crate::{chromium, driver, or_say};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tools/web");

/// Builds the page, and returns its folder, which also has the packages.
fn built() -> Result<PathBuf, Missing> {
    let described = fs::read_to_string(format!("{SOURCE}/package.json")).unwrap();
    let described: Value = serde_json::from_str(&described).unwrap();
    let of = |name: &str| described[name].as_object().unwrap().clone();
    let package =
        |(name, version): (String, Value)| format!("{name}@{}", version.as_str().unwrap());
    let mut packages: Vec<String> =
        of("dependencies").into_iter().chain(of("devDependencies")).map(package).collect();
    packages.push("puppeteer-core@25.16.0".to_owned());
    let packages: Vec<&str> = packages.iter().map(String::as_str).collect();
    let folder = installed::node(installed::folder("front-clients", "web"), &packages)?;
    let mut build = Command::new(folder.join("node_modules/.bin/esbuild"));
    build.args(["main.jsx", "--bundle", "--jsx=automatic", "--log-level=error"]);
    build.arg(format!("--outfile={}/page.js", folder.display())).current_dir(SOURCE);
    installed::run(build.env("NODE_PATH", folder.join("node_modules")))?;
    Ok(folder)
}

/// Serves the page until the program ends, and returns its origin.
fn serve(folder: &Path) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    let folder = folder.to_owned();
    thread::spawn(move || {
        for connection in listener.incoming().map_while(Result::ok) {
            let _ = answer(connection, &folder); // A browser may leave before it has read all.
        }
    });
    origin
}

fn answer(connection: TcpStream, folder: &Path) -> std::io::Result<()> {
    let mut reader = BufReader::new(connection);
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let mut line = String::new();
    while reader.read_line(&mut line)? > 2 {
        line.clear();
    }
    let (media_type, file) = match first.split([' ', '?']).nth(1) {
        Some("/") => ("text/html", fs::read(format!("{SOURCE}/index.html"))?),
        Some("/page.css") => ("text/css", fs::read(format!("{SOURCE}/page.css"))?),
        Some("/page.js") => ("text/javascript", fs::read(folder.join("page.js"))?),
        _ => ("text/plain", Vec::new()),
    };
    let connection = reader.get_mut();
    let length = file.len();
    write!(
        connection,
        "HTTP/1.1 200 OK\r\nContent-Type: {media_type}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n"
    )?;
    connection.write_all(&file)
}

#[test]
fn the_page_shows_text_and_a_growing_output_before_the_run_is_over() {
    let Some(program) = chromium::find() else { return };
    or_say(built(), |folder| {
        let model = ModelServer::following("page", SCRIPT);
        let origin = serve(folder);
        let described = format!("demo=chat,{},demo", model.base_url);
        let server = Server::start(&[
            "--model",
            &described,
            "--agent-tools",
            "all",
            "--allow-origin",
            &origin,
        ]);
        let screenshot = folder.with_file_name("page.png");
        let _ = fs::remove_file(&screenshot); // From the previous run.
        let output = Command::new("node")
            .arg(driver("page.mjs"))
            .args([folder, &program])
            .arg(format!("{origin}/?server=http://{}", server.address()))
            .arg(&screenshot)
            .output()
            .unwrap();
        let trouble = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{trouble}");
        let looks: Vec<Value> = serde_json::from_slice(&output.stdout).expect(&trouble);
        let text = |look: &Value| look["text"].as_str().unwrap().to_owned();
        let growing: Vec<&Value> = looks
            .iter()
            .filter(|look| look["status"] == "streaming" && look["tool"] == "running")
            .filter(|look| text(look) == "This takes a while. ")
            .collect();
        let mut lengths: Vec<u64> =
            growing.iter().map(|look| look["output"].as_u64().unwrap()).collect();
        assert!(lengths.is_sorted(), "{looks:#?}");
        lengths.retain(|length| *length > 0);
        lengths.dedup();
        assert!(lengths.len() >= 3, "the output grows while the run goes on: {looks:#?}");
        let last = looks.last().unwrap();
        assert_eq!((&last["status"], &last["tool"]), (&"ready".into(), &"done".into()));
        assert_eq!(text(last), "This takes a while. It is over.");
        assert!(last["output"].as_u64() >= lengths.last().copied());
        assert!(fs::metadata(&screenshot).unwrap().len() > 1_000, "a picture is kept");
    });
}
