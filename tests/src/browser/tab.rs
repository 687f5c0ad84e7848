//! A page in the browser: what a user does, and what the user sees.

use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, bail};
use base64::Engine as _;
use serde_json::{Value, json};

use super::Connection;
use crate::wait::eventually;

/// The size and the colours of a screen.
#[derive(Clone, Copy, Debug)]
pub struct Screen {
    /// In CSS pixels.
    pub width: u32,
    /// In CSS pixels.
    pub height: u32,
    /// Whether the system prefers dark pages.
    pub is_dark: bool,
}

/// A tab. It keeps what its page has complained about.
#[derive(Debug)]
pub struct Tab {
    connection: Arc<Connection>,
    session: String,
}

impl Tab {
    pub(super) async fn new(connection: Arc<Connection>, session: String) -> Result<Self> {
        let tab = Self {
            connection,
            session,
        };
        for domain in ["Page", "Runtime", "Log"] {
            tab.call(&format!("{domain}.enable"), json!({})).await?;
        }
        Ok(tab)
    }

    async fn call(&self, method: &str, params: Value) -> Result<Value> {
        let session = Some(self.session.as_str());
        self.connection.call(session, method, params).await
    }

    /// Makes the screen of that size.
    ///
    /// # Errors
    ///
    /// If Chromium refuses.
    pub async fn set_screen(&self, screen: Screen) -> Result<()> {
        let size = json!({
            "width": screen.width,
            "height": screen.height,
            "deviceScaleFactor": 1,
            "mobile": false,
        });
        let name = "Emulation.setDeviceMetricsOverride";
        self.call(name, size).await?;
        let scheme = if screen.is_dark { "dark" } else { "light" };
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        let media = json!({"features": features});
        self.call("Emulation.setEmulatedMedia", media).await?;
        Ok(())
    }

    /// Opens an address, in the same page where only the fragment differs.
    ///
    /// # Errors
    ///
    /// If there is no answer.
    pub async fn open(&self, address: &str) -> Result<()> {
        let result = self.call("Page.navigate", json!({"url": address})).await?;
        match result["errorText"].as_str() {
            Some(error) => bail!("failed to open {address}: {error}"),
            None => Ok(()),
        }
    }

    /// The value of an expression, or of the promise that it is. It runs beside the page's policy
    /// for scripts.
    ///
    /// # Errors
    ///
    /// If it throws.
    pub async fn evaluate(&self, expression: &str) -> Result<Value> {
        let params = json!({
            "expression": expression,
            "awaitPromise": true,
            "returnByValue": true,
        });
        let mut result = self.call("Runtime.evaluate", params).await?;
        if let Some(exception) = result.get("exceptionDetails") {
            bail!("{expression}: {exception}");
        }
        Ok(result["result"]["value"].take())
    }

    /// The text of the element, as it is seen; empty if there is none.
    ///
    /// # Errors
    ///
    /// If Chromium refuses.
    pub async fn text(&self, selector: &str) -> Result<String> {
        let selector = Value::from(selector);
        let text = format!("document.querySelector({selector})?.innerText ?? ''");
        let text = self.evaluate(&text).await?;
        Ok(text.as_str().unwrap_or_default().to_owned())
    }

    /// Waits until the text of the element contains `part`; returns all of it.
    ///
    /// # Panics
    ///
    /// If it does not in time.
    pub async fn until_text(&self, selector: &str, part: &str) -> String {
        let what = format!("{selector} has {part:?}");
        let observe = || async { self.text(selector).await.map_err(|error| error.to_string()) };
        let has_part =
            |text: &Result<String, String>| text.as_ref().is_ok_and(|text| text.contains(part));
        eventually(&what, observe, has_part)
            .await
            .unwrap_or_default()
    }

    /// Waits until an expression is true.
    ///
    /// # Panics
    ///
    /// If it is not in time.
    pub async fn until(&self, expression: &str) {
        let observe = || async {
            let value = self.evaluate(expression).await;
            value.map_err(|error| error.to_string())
        };
        let is_true = |value: &Result<Value, String>| *value == Ok(Value::Bool(true));
        let _seen = eventually(expression, observe, is_true).await;
    }

    /// Presses a key and releases it: `Enter`, `Tab`, `ArrowLeft`, or a character.
    ///
    /// # Errors
    ///
    /// If Chromium refuses.
    pub async fn press(&self, key: &str) -> Result<()> {
        let (code, text) = match key {
            "Backspace" => (8, ""),
            "Tab" => (9, ""),
            "Enter" => (13, "\r"),
            "Escape" => (27, ""),
            "End" => (35, ""),
            "Home" => (36, ""),
            "ArrowLeft" => (37, ""),
            "ArrowUp" => (38, ""),
            "ArrowRight" => (39, ""),
            "ArrowDown" => (40, ""),
            character => (0, character),
        };
        let mut event = json!({
            "type": if text.is_empty() { "rawKeyDown" } else { "keyDown" },
            "key": key,
            "code": key,
            "windowsVirtualKeyCode": code,
            "text": text,
        });
        self.call("Input.dispatchKeyEvent", event.clone()).await?;
        event["type"] = "keyUp".into();
        self.call("Input.dispatchKeyEvent", event).await?;
        Ok(())
    }

    /// Types a text where the focus is.
    ///
    /// # Errors
    ///
    /// If Chromium refuses.
    pub async fn type_text(&self, text: &str) -> Result<()> {
        self.call("Input.insertText", json!({"text": text})).await?;
        Ok(())
    }

    /// The picture of the screen, as PNG.
    ///
    /// # Errors
    ///
    /// If Chromium refuses.
    pub async fn picture(&self) -> Result<Vec<u8>> {
        let format = json!({"format": "png", "optimizeForSpeed": false});
        let picture = self.call("Page.captureScreenshot", format).await?;
        let data = picture["data"].as_str().context("no picture")?;
        let decoder = base64::engine::general_purpose::STANDARD;
        decoder.decode(data).map_err(|error| anyhow!(error))
    }

    /// The bytes of the heap of its scripts, with what they have not collected yet.
    ///
    /// # Errors
    ///
    /// If Chromium refuses.
    pub async fn heap_bytes(&self) -> Result<u64> {
        let usage = self.call("Runtime.getHeapUsage", json!({})).await?;
        let bytes = usage["usedSize"].as_u64();
        bytes.with_context(|| format!("no usedSize in {usage}"))
    }

    /// Closes it.
    ///
    /// # Errors
    ///
    /// If Chromium refuses.
    pub async fn close(self) -> Result<()> {
        self.call("Page.close", json!({})).await?;
        Ok(())
    }

    /// Everything that the page has complained about since it was opened: uncaught exceptions, and
    /// lines of the console. Refused requests are among them: Chromium writes a line for each.
    pub fn complaints(&self) -> Vec<String> {
        let complaint = |event: &Value| {
            let params = &event["params"];
            match event["method"].as_str()? {
                "Runtime.exceptionThrown" => Some(params["exceptionDetails"].to_string()),
                "Runtime.consoleAPICalled" => Some(params["args"].to_string()),
                "Log.entryAdded" => {
                    let entry = &params["entry"];
                    let (text, url) = (entry["text"].as_str()?, entry["url"].as_str());
                    Some(format!("{text} {}", url.unwrap_or_default()))
                }
                _ => None,
            }
        };
        self.connection.with_inbox(|inbox| {
            let events = inbox.events.get(&self.session);
            let events = events.map(Vec::as_slice).unwrap_or_default();
            events.iter().filter_map(complaint).collect()
        })
    }
}
