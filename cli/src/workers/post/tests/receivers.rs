//! Runs the example receivers of the reference, in three languages.

use super::*;

/// Returns the example of the reference in this language.
fn documented(language: &str) -> &'static str {
    let page = include_str!("../../../../../docs/reference/workers.md");
    let (_, rest) = page.split_once(&format!("\n```{language}\n")).expect(language);
    rest.split_once("\n```").expect(language).0
}

/// Returns whether the receiver in this language accepts the signature of the request.
async fn accepts(language: &str, seen: &Seen, url: &str) -> bool {
    let directory = tempfile::tempdir().unwrap();
    let headers: HashMap<&str, &str> =
        seen.headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
    let headers = serde_json::to_string(&headers).unwrap();
    let body = std::str::from_utf8(&seen.body).unwrap();
    let code = documented(language);
    let (name, program, run) = match language {
        "python" => {
            let call = format!("print(is_genuine(b'a secret', '{}', '{url}', {headers}, b'{body}'))", seen.method);
            ("check.py", format!("{code}\n{call}\n"), vec!["python3"])
        }
        "javascript" => {
            let call = format!("console.log(isGenuine('a secret', '{}', '{url}', {headers}, '{body}'))", seen.method);
            ("check.js", format!("{code}\n{call}\n"), vec!["node"])
        }
        _ => {
            let main = format!(
                "func main() {{\n\tr, _ := http.NewRequest(\"{}\", \"/\", nil)\n\tvar headers map[string]string\n\
                 \tjson.Unmarshal([]byte(`{headers}`), &headers)\n\
                 \tfor name, value := range headers {{ r.Header.Set(name, value) }}\n\
                 \tfmt.Println(isGenuine([]byte(\"a secret\"), \"{url}\", r, []byte(\"{body}\")))\n}}\n",
                seen.method
            );
            let packages =
                "crypto/hmac crypto/sha256 encoding/hex encoding/json fmt net/http sort strconv strings time";
            let imports = packages.replace(' ', "\"\nimport \"");
            ("check.go", format!("package main\n\nimport \"{imports}\"\n{code}\n{main}"), vec!["go", "run"])
        }
    };
    let path = directory.path().join(name);
    std::fs::write(&path, program).unwrap();
    let output = tokio::process::Command::new(run[0]).args(&run[1..]).arg(&path).output().await.unwrap();
    assert!(output.status.success(), "{language}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().eq_ignore_ascii_case("true")
}

#[tokio::test]
async fn the_receivers_of_the_reference_accept_a_signed_request_and_no_changed_one() {
    let (url, log) = server().await;
    let url = format!("{url}/upper?a=1");
    let signed = Target { secret: Secret::new("a secret"), ..target(&url) };
    let attempt = attempt(&[("tenant", " a ")]).await;
    assert_eq!(Post::new(signed).unwrap().run(&attempt).await, Outcome::ack("HELLO"));
    let seen = log.lock()[0].clone();
    let mut changed = seen.clone();
    changed.headers.insert("howdah-job-id", HeaderValue::from_static("18"));
    for (language, program) in [("python", "python3"), ("javascript", "node"), ("go", "go")] {
        if std::process::Command::new(program).arg("--help").output().is_err() {
            eprintln!("!!! {program} is not installed: the receiver in {language} is NOT run");
            continue;
        }
        assert!(accepts(language, &seen, &url).await, "{language}");
        assert!(!accepts(language, &seen, "https://other.example/").await, "{language}");
        assert!(!accepts(language, &changed, &url).await, "{language}");
    }
}
