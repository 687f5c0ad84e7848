use super::*;

#[test]
fn finds_a_network_by_name_with_lists_first() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    let missing = NetworkConfigList::load(dir.path(), "a")
        .unwrap_err()
        .to_string();
    assert_eq!(
        missing,
        format!("no net configurations found in {}", dir.path().display())
    );
    write("00.conf", r#"{"name": "a", "type": "single"}"#);
    write(
        "99.conflist",
        r#"{"name": "a", "cniVersion": "1.0.0", "plugins": [{"type": "listed"}]}"#,
    );
    let list = NetworkConfigList::load(dir.path(), "a").unwrap();
    assert_eq!(list.plugins[0]["type"], "listed");
    assert_eq!(
        NetworkConfigList::load_first(dir.path()).unwrap().plugins[0]["type"],
        "single"
    );
    let other = NetworkConfigList::load(dir.path(), "b")
        .unwrap_err()
        .to_string();
    assert_eq!(
        other,
        format!(
            "no net configuration with name \"b\" in {}",
            dir.path().display()
        )
    );
    write("01.conflist", "{");
    assert!(
        NetworkConfigList::load(dir.path(), "a").is_err(),
        "a broken earlier file aborts"
    );
}

#[test]
fn plugins_of_the_networks_directory_are_appended() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("10.conflist");
    fs::write(&path, r#"{"name": "n", "plugins": [{"type": "a"}]}"#).unwrap();
    fs::create_dir(dir.path().join("n")).unwrap();
    fs::write(dir.path().join("n/5.conf"), r#"{"type": "b"}"#).unwrap();
    let types = |path: &Path| -> Vec<_> {
        let list = NetworkConfigList::load_file(path).unwrap();
        list.plugins
            .iter()
            .map(|p| p["type"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(types(&path), ["a", "b"]);
    fs::write(
        &path,
        r#"{"name": "n", "loadOnlyInlinedPlugins": "true", "plugins": [{"type": "a"}]}"#,
    )
    .unwrap();
    assert_eq!(types(&path), ["a"]);
}

#[test]
fn reads_single_files_as_lists_and_skips_files_without_a_name() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    write("00.conf", r#"{"type": "nameless"}"#);
    write(
        "10.json",
        r#"{"Name": "n", "cniVersion": "0.4.0", "Type": "json"}"#,
    );
    write("20.conf", r#"{"name": "n", "type": "conf"}"#);
    write("05.txt", "not looked at");
    let list = NetworkConfigList::load(dir.path(), "n").unwrap();
    assert_eq!(
        list.plugins[0]["Type"], "json",
        ".conf and .json are sorted together"
    );
    assert_eq!(
        (list.name.as_str(), list.cni_version.as_str()),
        ("n", "0.4.0")
    );
    let kept = NetworkConfigList::from_list(&list.bytes).unwrap();
    assert_eq!(kept.plugins, list.plugins, "what is cached is a list");
    write("15.conf", r#"{"name": "m"}"#);
    let found = NetworkConfigList::load(dir.path(), "n");
    assert!(found.is_ok(), "broken files after it are not read");
    let missing = NetworkConfigList::load(dir.path(), "x").unwrap_err();
    let chain = crate::skel::text(&missing);
    let path = dir.path().join("15.conf");
    let expected = format!(
        "{}: error parsing configuration: missing 'type'",
        path.display()
    );
    assert_eq!(
        chain, expected,
        "the broken file comes before the end of the search"
    );
}

#[test]
fn a_list_without_plugins_needs_a_plugin_directory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("10.conflist");
    fs::write(&path, r#"{"name": "n"}"#).unwrap();
    let error = NetworkConfigList::load_file(&path).unwrap_err();
    assert!(crate::skel::text(&error).ends_with(": no plugin configs found"));
    fs::create_dir(dir.path().join("n")).unwrap();
    for (file, plugin) in [
        ("b.conf", "second"),
        ("a.conf", "first"),
        ("c.conflist", "no"),
    ] {
        let text = format!(r#"{{"type": "{plugin}"}}"#);
        fs::write(dir.path().join("n").join(file), text).unwrap();
    }
    let list = NetworkConfigList::load_file(&path).unwrap();
    let types: Vec<_> = list.plugins.iter().map(|p| &p["type"]).collect();
    assert_eq!(types, ["first", "second"]);
    fs::write(dir.path().join("n/0.conf"), "{").unwrap();
    let error = NetworkConfigList::load_file(&path).unwrap_err();
    assert!(
        crate::skel::text(&error)
            .ends_with("error parsing configuration: unexpected end of JSON input")
    );
}

#[test]
fn the_highest_supported_version_is_chosen() {
    let version = |single: &str, several: &str| {
        let text = format!(
            r#"{{"name": "n", "cniVersion": "{single}", "cniVersions": {several}, "plugins": [{{"type": "a"}}]}}"#
        );
        NetworkConfigList::from_list(text.as_bytes()).map(|list| list.cni_version)
    };
    for (single, several, want) in [
        ("0.3.1", r#"["0.4.0", "9.0.0", "1.0.0"]"#, "1.0.0"),
        ("1.1.0", r#"["0.4.0", "1.0.0"]"#, "1.1.0"),
        ("", r#"["0.3.1", "0.4.0"]"#, "0.4.0"),
        ("1.0.0", "[]", "1.0.0"),
        ("9.0.0", r#"["8.0.0"]"#, "9.0.0"),
    ] {
        assert_eq!(
            version(single, several).unwrap(),
            want,
            "{single} {several}"
        );
    }
    for (single, several, want) in [
        ("", "5", "invalid type for cniVersions: float64"),
        ("", "[5]", "invalid type for cniVersions index 0: float64"),
        (
            "",
            r#"["1.0.0", "x"]"#,
            "invalid cniVersions entry x at index 1: failed to convert major version part \"x\": strconv.Atoi: parsing \"x\": invalid syntax",
        ),
        (
            "1.2.3.4",
            "[]",
            "invalid cniVersion 1.2.3.4: invalid version \"1.2.3.4\": too many parts",
        ),
    ] {
        let error = version(single, several).unwrap_err().to_string();
        assert_eq!(error, format!("error parsing configuration list: {want}"));
    }
}

#[test]
fn versions_are_compared_as_numbers() {
    let at_least = |text: &str, version| {
        let text =
            format!(r#"{{"name": "n", "cniVersion": "{text}", "plugins": [{{"type": "a"}}]}}"#);
        let list = NetworkConfigList::from_list(text.as_bytes()).unwrap();
        list.is_at_least(version)
    };
    assert!(!at_least("", Version::V0_2_0));
    assert!(!at_least("0.3.9", Version::V0_4_0));
    assert!(at_least("0.4", Version::V0_4_0));
    assert!(at_least("1.10.0", Version::V1_1_0));
}

#[test]
fn switches_are_booleans_or_their_names() {
    let list = |value: &str| {
        let text = format!(
            r#"{{"name": "n", "disableCheck": {value}, "disableGC": {value}, "plugins": [{{"type": "a"}}]}}"#
        );
        NetworkConfigList::from_list(text.as_bytes())
    };
    for (value, on) in [
        ("true", true),
        (r#""True""#, true),
        ("false", false),
        (r#""FALSE""#, false),
    ] {
        let list = list(value).unwrap();
        assert_eq!((list.disable_check, list.disable_gc), (on, on), "{value}");
    }
    for (value, want) in [
        ("null", "invalid type <nil> for disableCheck"),
        ("3", "invalid type float64 for disableCheck"),
        (r#""Yes""#, "invalid value \"yes\" for disableCheck"),
    ] {
        let error = list(value).unwrap_err().to_string();
        assert_eq!(error, format!("error parsing configuration list: {want}"));
    }
}

#[test]
fn invalid_lists_are_refused_with_the_texts_of_libcni() {
    const LIST: &str = "error parsing configuration list: ";
    const FIRST: &str = "failed to parse plugin config 0: error parsing configuration: ";
    for (bad, prefix, want) in [
        ("", LIST, "unexpected end of JSON input"),
        ("{}", LIST, "no name"),
        (r#"{"name": 5}"#, LIST, "invalid name type float64"),
        (r#"{"name": null}"#, LIST, "invalid name type <nil>"),
        (
            r#"{"name": "n", "cniVersion": 1}"#,
            LIST,
            "invalid cniVersion type float64",
        ),
        (r#"{"name": "n"}"#, "", "no plugin configs found"),
        (
            r#"{"name": "n", "plugins": []}"#,
            LIST,
            "no plugins in list",
        ),
        (
            r#"{"name": "n", "plugins": {}}"#,
            LIST,
            "invalid 'plugins' type map[string]interface {}",
        ),
        (r#"{"name": "n", "plugins": [{}]}"#, FIRST, "missing 'type'"),
        (
            r#"{"name": "n", "loadOnlyInlinedPlugins": true}"#,
            LIST,
            "`loadOnlyInlinedPlugins` is true, and no 'plugins' key",
        ),
    ] {
        let error = NetworkConfigList::from_list(bad.as_bytes()).unwrap_err();
        assert_eq!(
            crate::skel::text(&error),
            format!("{prefix}{want}"),
            "{bad}"
        );
    }
    for bad in [
        "[]",
        r#"{"name": "n", "plugins": ["a"]}"#,
        r#"{"name": "n", "plugins": [{"type": 5}]}"#,
        r#"{"name": "n", "plugins": [{"type": "a", "capabilities": {"ips": "yes"}}]}"#,
    ] {
        assert!(
            NetworkConfigList::from_list(bad.as_bytes()).is_err(),
            "{bad}"
        );
    }
}
