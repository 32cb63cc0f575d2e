//! A headless Chromium, controlled over `WebDriver`, which is HTTP with JSON and requires no crate.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::support::{child, ports::free_port, wait_until};

const START: Duration = Duration::from_secs(30);
/// Longer than any command takes.
const ANSWER: Duration = Duration::from_secs(30);
/// The `WebDriver` key of an element reference.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A type of screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Screen {
    Desktop,
    Phone,
}

impl Screen {
    pub const ALL: [Self; 2] = [Self::Desktop, Self::Phone];

    /// Width and height.
    pub fn size(self) -> (u64, u64) {
        match self {
            Self::Desktop => (1280, 900),
            Self::Phone => (360, 740),
        }
    }

    /// The parameters of the `DevTools` protocol.
    fn metrics(self) -> Value {
        let (width, height) = self.size();
        json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": self == Self::Phone})
    }
}

/// A browser with one window. It ends with the test.
pub struct Browser {
    programs: [Child; 2],
    port: u16,
    session: String,
    shots: PathBuf,
}

impl Browser {
    /// Starts a browser. Its profile, its log and the screenshots are in `dir`.
    pub fn open(dir: &Path) -> Self {
        let profile = dir.join("chromium");
        fs::create_dir_all(&profile).unwrap();
        let log = File::create(dir.join("chromium.log")).unwrap();
        // The driver does not start the browser: a child of the driver would outlive a killed test process.
        let mut command = child::tied(installed("chromium"));
        command
            .args(["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"])
            .args(["--no-first-run", "--disable-background-networking", "--hide-scrollbars"])
            .args(["--remote-debugging-port=0", "--lang=en"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg("about:blank")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log.try_clone().unwrap());
        let chromium = child::spawn(command);
        let port = free_port();
        let mut command = child::tied(installed("chromedriver"));
        command
            .arg(format!("--port={port}"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        let driver = child::spawn(command);
        let mut browser =
            Self { programs: [chromium, driver], port, session: String::new(), shots: dir.join("shots") };
        browser.begin(&profile);
        browser
    }

    /// Starts the session when both programs respond.
    fn begin(&mut self, profile: &Path) {
        let devtools = wait_until("Chromium to start (its log is chromium.log)", START, || {
            let text = fs::read_to_string(profile.join("DevToolsActivePort")).ok()?;
            text.lines().next()?.parse::<u16>().ok()
        });
        let capabilities = json!({"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": {"debuggerAddress": format!("127.0.0.1:{devtools}")},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }}});
        let answer = wait_until("chromedriver to start (its log is chromium.log)", START, || {
            request(self.port, "POST", "/session", &capabilities)
        });
        let id = answer["value"]["sessionId"].as_str().map(str::to_owned);
        self.session = id.unwrap_or_else(|| panic!("chromedriver returned no session: {answer}"));
    }

    /// Opens a page and waits until it is loaded.
    pub fn go(&self, url: &str) {
        self.command("url", &json!({"url": url}));
    }

    pub fn back(&self) {
        self.command("back", &json!({}));
    }

    pub fn url(&self) -> String {
        self.evaluate("return location.href").as_str().unwrap().to_owned()
    }

    /// The visible text of the page.
    pub fn text(&self) -> String {
        self.evaluate("return document.body.innerText").as_str().unwrap().to_owned()
    }

    pub fn title(&self) -> String {
        self.evaluate("return document.title").as_str().unwrap().to_owned()
    }

    /// Clicks the link with this text. A reload of the page before the click replaces the element that was found.
    pub fn click(&self, link: &str) {
        wait_until(&format!("a click on {link:?}"), ANSWER, || {
            let found = self.command("element", &json!({"using": "link text", "value": link}));
            let element = found[ELEMENT].as_str().unwrap_or_else(|| panic!("no link {link:?}: {found}"));
            self.attempt(&format!("element/{element}/click"), &json!({}))
        });
    }

    /// Runs a script and returns its result.
    pub fn evaluate(&self, script: &str) -> Value {
        self.command("execute/sync", &json!({"script": script, "args": []}))
    }

    pub fn screen(&self, screen: Screen) {
        self.devtools("Emulation.setDeviceMetricsOverride", &screen.metrics());
    }

    /// `light` or `dark`.
    pub fn prefers(&self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.devtools("Emulation.setEmulatedMedia", &json!({"features": features}));
    }

    /// Writes a screenshot of the whole page to `name.png` in the folder of the screenshots.
    pub fn shoot(&self, name: &str) {
        let size =
            self.evaluate("const it = document.documentElement; return [it.clientWidth, it.scrollHeight]");
        let clip = json!({"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1});
        let how = json!({"captureBeyondViewport": true, "clip": clip});
        let picture = self.devtools("Page.captureScreenshot", &how);
        fs::create_dir_all(&self.shots).unwrap();
        let bytes = BASE64_STANDARD.decode(picture["data"].as_str().unwrap()).unwrap();
        fs::write(self.shots.join(format!("{name}.png")), bytes).unwrap();
    }

    /// The console messages since the previous call.
    pub fn console(&self) -> Vec<String> {
        let lines = self.command("se/log", &json!({"type": "browser"}));
        lines.as_array().unwrap().iter().map(ToString::to_string).collect()
    }

    /// The URLs that the browser requested since the previous call.
    pub fn requested(&self) -> Vec<String> {
        let events = self.command("se/log", &json!({"type": "performance"}));
        let urls = events.as_array().unwrap().iter().filter_map(|event| {
            let event: Value = serde_json::from_str(event["message"].as_str()?).ok()?;
            let sent = event["message"]["method"] == "Network.requestWillBeSent";
            sent.then(|| event["message"]["params"]["request"]["url"].as_str().map(str::to_owned))?
        });
        urls.collect()
    }

    fn devtools(&self, command: &str, params: &Value) -> Value {
        self.command("goog/cdp/execute", &json!({"cmd": command, "params": params}))
    }

    /// Runs a command. It is retried if a reload of the page interrupts it.
    fn command(&self, what: &str, body: &Value) -> Value {
        wait_until(&format!("an answer to {what} {body}"), ANSWER, || self.attempt(what, body))
    }

    /// Runs a command once. `None` if a reload of the page has interrupted it, or has replaced its element.
    fn attempt(&self, what: &str, body: &Value) -> Option<Value> {
        let path = format!("/session/{}/{what}", self.session);
        let answer = request(self.port, "POST", &path, body).expect("a response of chromedriver");
        let value = &answer["value"];
        let error = value["message"].as_str().filter(|_| value["error"].is_string());
        let interrupted = error.is_some_and(|error| error.contains("navigation"))
            || value["error"] == "stale element reference";
        assert!(error.is_none() || interrupted, "{what} {body}: {answer}");
        error.is_none().then(|| value.clone())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        for program in self.programs.iter_mut().rev() {
            program.kill().ok();
            program.wait().ok();
        }
    }
}

/// The path of a program. Panics with the install command if it is missing.
fn installed(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|place| place.join(name)).find(|file| file.is_file());
    found.unwrap_or_else(|| {
        panic!("{name} is not installed: run scripts/setup, or apt-get install chromium chromium-driver")
    })
}

/// The JSON response, `None` while the port is closed. chromedriver keeps its connections open.
fn request(port: u16, method: &str, path: &str, body: &Value) -> Option<Value> {
    let mut socket = TcpStream::connect(("127.0.0.1", port)).ok()?;
    socket.set_read_timeout(Some(ANSWER)).unwrap();
    let body = body.to_string();
    let length = body.len();
    write!(socket, "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}")
        .ok()?;
    let mut answer = BufReader::new(socket);
    let mut length = 0;
    loop {
        let mut line = String::new();
        answer.read_line(&mut line).ok()?;
        match line.trim_end().split_once(':') {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.trim().parse().ok()?;
            }
            None if line.trim().is_empty() => break,
            _ => {}
        }
    }
    let mut text = vec![0; length];
    answer.read_exact(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}
