//! Commands that repeat a finding from the beginning: the calls of a network as they were made,
//! written for a POSIX shell.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    mem,
    path::Path,
    thread::{self, ThreadId},
    time::Instant,
};

use serde_json::Value;

use super::{
    exchange::{Exchange, Interruption, PluginEnd, PluginInput},
    shell::{Octal, QuotedWord},
};

/// A container and its interface, the arguments of the function `cni` of a script.
type ScriptAttachment = (String, String);

/// A call that was made, remembered as long as its network exists.
#[derive(Debug, Clone)]
pub(super) struct ScriptedCall {
    pub(super) call: PluginInput,
    interruption: Interruption,
    end: PluginEnd,
    seconds: f64,
    began: Instant,
    ended: Instant,
    thread: ThreadId,
}

impl ScriptedCall {
    pub(super) fn new(exchange: &Exchange) -> Self {
        let ended = Instant::now();
        Self {
            call: exchange.call.clone(),
            interruption: exchange.interruption.clone(),
            end: exchange.end,
            seconds: exchange.took.as_secs_f64(),
            began: ended.checked_sub(exchange.took).unwrap_or(ended),
            ended,
            thread: thread::current().id(),
        }
    }

    fn attachment(&self) -> ScriptAttachment {
        attachment(&self.call)
    }

    /// The program that runs the plugin in its place, if the plugin was interrupted.
    fn prefix(&self) -> Option<String> {
        match self.interruption {
            Interruption::None => None,
            Interruption::After(_) | Interruption::OnChange { .. } => {
                let is_killed = self.end == PluginEnd::Interrupted;
                is_killed.then(|| format!("timeout -s KILL {:.4}", self.seconds))
            }
            Interruption::HalfWritten { bytes, .. } | Interruption::FileSize(bytes) => {
                Some(format!("prlimit --fsize={bytes}"))
            }
        }
    }
}

fn attachment(call: &PluginInput) -> ScriptAttachment {
    let env = |name| call.env(name).to_owned();
    (env("CNI_CONTAINERID"), env("CNI_IFNAME"))
}

/// The part of a history that matters to the format of its last answer: the calls for the same
/// attachment since its last DEL.
pub(super) fn since_last_del(mut records: Vec<ScriptedCall>) -> Vec<ScriptedCall> {
    let Some(last) = records.pop() else {
        return records;
    };
    let own = last.attachment();
    records.retain(|record| record.attachment() == own);
    let is_del = |record: &ScriptedCall| {
        record.call.plain.is_some()
            && record.call.command() == "DEL"
            && record.end == PluginEnd::Exit(0)
    };
    let begin = records.iter().rposition(is_del).map_or(0, |at| at + 1);
    records.drain(..begin);
    records.push(last);
    records
}

/// The parameters of a script beside the calls.
#[derive(Debug)]
pub(super) struct ScriptSetting<'a> {
    pub(super) program: &'a Path,
    /// The directory in configurations, which the script replaces by one of its own.
    pub(super) directory: &'a Path,
    /// The `CNI_NETNS` of all calls.
    pub(super) netns: String,
    /// Set if the namespace existed, so that the script makes it if it is missing.
    pub(super) is_netns_real: bool,
    pub(super) plugin_dir: String,
    /// Set if the addresses are removed with the directory.
    pub(super) has_own_directory: bool,
}

/// Writes the script for these calls, with what it makes and removes.
pub(super) fn commands(setting: &ScriptSetting<'_>, mut records: Vec<ScriptedCall>) -> String {
    records.sort_by_key(|record| record.began);
    let mut script = Script {
        setting,
        text: String::new(),
        config: String::new(),
        held: BTreeSet::new(),
        asked: BTreeSet::new(),
    };
    script.begin(&records);
    let mut records = records.into_iter().peekable();
    while let Some(first) = records.next() {
        let mut end = first.ended;
        let mut batch = vec![first];
        while let Some(next) = records.next_if(|next| {
            next.began < end && batch.iter().any(|record| record.thread != next.thread)
                || next.thread == batch[0].thread
                    && batch.iter().all(|record| record.thread == next.thread)
        }) {
            end = end.max(next.ended);
            batch.push(next);
        }
        script.batch(batch);
    }
    script.finish();
    script.text
}

struct Script<'a> {
    setting: &'a ScriptSetting<'a>,
    text: String,
    /// The present value of `$config`.
    config: String,
    /// The attachments whose results the script has in files.
    held: BTreeSet<ScriptAttachment>,
    /// The attachments that were asked for and not deleted, each with its configuration.
    asked: BTreeSet<(ScriptAttachment, String)>,
}

impl Script<'_> {
    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// The name of the namespace for `ip netns`, if it has one.
    fn netns_name(&self) -> Option<&str> {
        let path = Path::new(&self.setting.netns);
        let parent = path.parent()?.to_str()?;
        let is_named = matches!(parent, "/run/netns" | "/var/run/netns");
        (self.setting.is_netns_real && is_named).then(|| path.file_name()?.to_str())?
    }

    fn begin(&mut self, records: &[ScriptedCall]) {
        let is_killed = |record: &ScriptedCall| {
            let is_moment = matches!(
                record.interruption,
                Interruption::After(_) | Interruption::OnChange { .. }
            );
            is_moment && record.prefix().is_some()
        };
        if records.iter().any(is_killed) {
            self.line("# The moment of a SIGKILL is the machine's: this may take some tries.");
        }
        self.line("dir=$(mktemp -d)");
        let program = self.setting.program.to_string_lossy();
        self.line(&format!("plugin={}", QuotedWord(&program)));
        if let Some(name) = self.netns_name().map(str::to_owned) {
            let (name, path) = (
                QuotedWord(&name).to_string(),
                QuotedWord(&self.setting.netns),
            );
            let make = format!("made=; [ -e {path} ] || {{ ip netns add {name} && made={name}; }}");
            self.line(&make);
        }
        let netns = QuotedWord(&self.setting.netns).to_string();
        let path = QuotedWord(&self.setting.plugin_dir).to_string();
        let function = format!(
            r#"cni() {{ # COMMAND CONTAINERID IFNAME [PREFIX]: a call as a runtime makes it
  input=$config; result=$dir/$2.$3
  case $1 in CHECK|DEL) [ ! -s "$result" ] || input="${{config%?}},\"prevResult\":$(cat "$result")}}" ;; esac
  answer=$(printf %s "$input" | env CNI_COMMAND="$1" CNI_CONTAINERID="$2" CNI_NETNS={netns} CNI_IFNAME="$3" CNI_PATH={path} $4 "$plugin")
  code=$?
  case $1.$code in ADD.0) [ -s "$result" ] || printf %s "$answer" >"$result" ;; DEL.*) rm -f "$result" ;; esac
  echo "$1 $2 $3: $answer (exit code $code)"
}}"#
        );
        self.line(&function);
    }

    /// Writes calls of one thread in their order, or calls of several threads that ran at the same
    /// time.
    fn batch(&mut self, batch: Vec<ScriptedCall>) {
        let mut threads: Vec<(ThreadId, Vec<ScriptedCall>)> = Vec::new();
        for record in batch {
            match threads.iter_mut().find(|(id, _)| *id == record.thread) {
                Some((_, own)) => own.push(record),
                None => threads.push((record.thread, vec![record])),
            }
        }
        let is_concurrent = threads.len() > 1;
        for (_, own) in threads {
            if !is_concurrent {
                self.sequence(own);
                continue;
            }
            // All calls have the configuration of their network, which must be set outside of the
            // subshell.
            if let Some(plain) = own.iter().find_map(|record| record.call.plain.as_ref()) {
                let config = plain.config.clone();
                self.set_config(&config);
            }
            let before = mem::take(&mut self.text);
            self.sequence(own);
            let inside = mem::replace(&mut self.text, before);
            let joined = inside.trim_end().replace('\n', "; ");
            self.line(&format!("( {joined} ) &"));
        }
        if is_concurrent {
            self.line("wait");
        }
    }

    fn set_config(&mut self, config: &str) {
        if self.config != config {
            config.clone_into(&mut self.config);
            let assignment = format!("config={}", self.word(config));
            self.line(&assignment);
        }
    }

    fn sequence(&mut self, records: Vec<ScriptedCall>) {
        let mut records = records.into_iter().peekable();
        while let Some(record) = records.next() {
            if !self.can_be_plain(&record) {
                self.raw(&record);
                continue;
            }
            let config = record.call.plain.as_ref().map(|plain| plain.config.clone());
            self.set_config(&config.unwrap_or_default());
            let (command, (id, ifname)) = (record.call.command().to_owned(), record.attachment());
            self.follow(&record);
            let mut ids = vec![id];
            let prefix = record.prefix();
            while prefix.is_none()
                && let Some(next) = records.next_if(|next| {
                    next.prefix().is_none()
                        && next.call.command() == command
                        && next.call.env("CNI_IFNAME") == ifname
                        && next.call.plain.as_ref().map(|plain| &plain.config)
                            == record.call.plain.as_ref().map(|plain| &plain.config)
                        && self.can_be_plain(next)
                })
            {
                self.follow(&next);
                ids.push(next.attachment().0);
            }
            let line = match (&prefix, ids.as_slice()) {
                (Some(prefix), [id, ..]) => format!("cni {command} {id} {ifname} '{prefix}'"),
                (None, [id]) => format!("cni {command} {id} {ifname}"),
                (_, ids) => format!(
                    "for id in {}; do cni {command} $id {ifname}; done",
                    ids.join(" ")
                ),
            };
            self.line(&line);
        }
    }

    /// Returns true if the function `cni` repeats the call exactly, with the results that the
    /// script has by then.
    fn can_be_plain(&self, record: &ScriptedCall) -> bool {
        let Some(plain) = &record.call.plain else {
            return false;
        };
        match record.call.command() {
            "ADD" => true,
            "CHECK" | "DEL" => plain.has_result == self.held.contains(&record.attachment()),
            _ => false,
        }
    }

    /// Records the effects of a call.
    fn follow(&mut self, record: &ScriptedCall) {
        let attachment = record.attachment();
        let config = record.call.plain.as_ref().map(|plain| plain.config.clone());
        let config = config.unwrap_or_default();
        match record.call.command() {
            "ADD" => {
                if record.end == PluginEnd::Exit(0) {
                    self.held.insert(attachment.clone());
                }
                self.asked.insert((attachment, config));
            }
            "DEL" => {
                self.held.remove(&attachment);
                self.asked.remove(&(attachment, config));
            }
            _ => {}
        }
    }

    /// Writes a call with an environment or an input of its own.
    fn raw(&mut self, record: &ScriptedCall) {
        let call = &record.call;
        let input = match std::str::from_utf8(&call.stdin) {
            Ok(text) if !text.contains(char::is_control) => format!("%s {}", self.word(text)),
            _ => format!("'{}'", Octal(&call.stdin)),
        };
        let mut line = format!("printf {input} | env");
        for (key, value) in &call.env {
            _ = write!(line, " {key}={}", QuotedWord(value));
        }
        if let Some(prefix) = record.prefix() {
            _ = write!(line, " {prefix}");
        }
        line.push_str(" \"$plugin\"; echo \" (exit code $?)\"");
        self.line(&line);
        if call.command() == "GC" {
            self.forget_stale(&call.stdin.clone());
        } else if call.plain.is_some() && call.command() == "DEL" {
            self.drop_results(&[record.attachment()]);
            self.follow(record);
        }
    }

    /// Drops the results of attachments that a GC does not name as valid: no later DEL gets them.
    fn forget_stale(&mut self, config: &[u8]) {
        let config: Value = serde_json::from_slice(config).unwrap_or_default();
        let Some(valid) = config["cni.dev/valid-attachments"].as_array() else {
            return;
        };
        let is_valid = |(id, ifname): &ScriptAttachment| {
            let same = |entry: &Value| entry["containerID"] == **id && entry["ifname"] == **ifname;
            valid.iter().any(same)
        };
        let stale: Vec<_> = self
            .held
            .iter()
            .filter(|held| !is_valid(held))
            .cloned()
            .collect();
        self.drop_results(&stale);
    }

    fn drop_results(&mut self, attachments: &[ScriptAttachment]) {
        let mut line = "rm -f".to_owned();
        for attachment in attachments {
            if self.held.remove(attachment) {
                _ = write!(line, " \"$dir\"/{}.{}", attachment.0, attachment.1);
            }
        }
        if line.contains('/') {
            self.line(&line);
        }
    }

    /// Quotes a word, in which the directory becomes the script's own.
    fn word(&self, text: &str) -> String {
        let directory = self.setting.directory.to_string_lossy();
        let quoted = QuotedWord(text).to_string();
        let own = if quoted.starts_with('\'') {
            "'\"$dir\"'"
        } else {
            "\"$dir\""
        };
        quoted.replace(&*directory, own)
    }

    fn finish(&mut self) {
        if !self.setting.has_own_directory {
            for (attachment, config) in mem::take(&mut self.asked) {
                self.set_config(&config);
                self.line(&format!("cni DEL {} {}", attachment.0, attachment.1));
            }
        }
        if self.netns_name().is_some() {
            self.line("[ -z \"$made\" ] || ip netns del \"$made\"");
        }
        self.line("rm -r \"$dir\"");
    }
}
