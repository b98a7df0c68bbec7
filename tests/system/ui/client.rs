//! A browser for tests, without scripts, which keeps cookies and sends the origin of its forms.

use std::collections::BTreeMap;

use crate::{
    hostile::http::ask,
    support::{Service, TestBroker, eventually},
};

#[derive(Clone)]
pub struct Browser {
    http: String,
    /// Host name that the browser sends, as from the address bar.
    pub host: String,
    pub cookies: BTreeMap<String, String>,
    /// Additional headers that the browser sends with each request.
    pub headers: Vec<(String, String)>,
}

/// A page: the response to a request of the browser.
#[derive(Clone, Debug)]
pub struct Page {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Page {
    fn parse(answer: &str) -> Self {
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((answer, ""));
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).unwrap_or(0);
        let headers = lines.filter_map(|line| line.split_once(": "));
        let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
        Self { status, headers, body: body.to_owned() }
    }

    /// Returns the first header with this name, or an empty text.
    pub fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }

    /// Asserts status 200 and that the page contains each of these texts; returns the page.
    pub fn has(self, texts: &[&str]) -> Self {
        assert_eq!(self.status, 200, "{self:?}");
        for text in texts {
            assert!(self.body.contains(text), "{text:?} is not in {}", self.body);
        }
        self
    }

    /// Asserts that the page contains none of these texts; returns the page.
    pub fn has_no(self, texts: &[&str]) -> Self {
        for text in texts {
            assert!(!self.body.contains(text), "{text:?} is in {}", self.body);
        }
        self
    }

    /// Target of the redirect that the page must be.
    pub fn leads_to(&self) -> &str {
        assert_eq!(self.status, 303, "{self:?}");
        self.header("location")
    }

    /// Returns the path of the list's next page; `None` on the last page.
    pub fn next_page(&self) -> Option<String> {
        let link = self.body.split("rel=\"next\" href=\"").nth(1)?.split('"').next()?;
        Some(link.replace("&#38;", "&").replace("&amp;", "&"))
    }

    /// Returns names and values of the hidden fields of the page's forms.
    pub fn hidden(&self) -> Vec<(String, String)> {
        let part = |text: &str, name: &str| {
            let rest = text.split_once(&format!(" {name}=\""))?.1;
            let value = rest.split_once('"')?.0.replace("&#34;", "\"").replace("&#39;", "'");
            Some(value.replace("&#60;", "<").replace("&#62;", ">").replace("&#38;", "&"))
        };
        let fields = self.body.split("<input type=\"hidden\"").skip(1).map(|rest| rest.split('>').next().unwrap());
        fields.map(|field| (part(field, "name").unwrap(), part(field, "value").unwrap())).collect()
    }
}

impl Browser {
    pub fn new(service: &Service) -> Self {
        Self { http: service.http.clone(), host: "localhost".into(), cookies: BTreeMap::new(), headers: Vec::new() }
    }

    pub fn at(broker: &TestBroker) -> Self {
        Self::new(broker)
    }

    /// Returns a browser that is logged in with this token.
    pub async fn logged_in(broker: &TestBroker, token: &str) -> Self {
        let mut browser = Self::at(broker);
        let page = browser.post("/ui/login", &[("token", token)]).await;
        assert_eq!(page.leads_to(), "/ui/", "{page:?}");
        browser
    }

    /// Returns this browser with its cookies, connected to another broker.
    pub fn moved_to(&self, broker: &TestBroker) -> Self {
        Self { http: broker.http.clone(), ..self.clone() }
    }

    fn head(&self, method: &str, path: &str) -> String {
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", self.host);
        if !self.cookies.is_empty() {
            let cookies: Vec<_> = self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
            head += &format!("Cookie: {}\r\n", cookies.join("; "));
        }
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        head
    }

    pub async fn get(&self, path: &str) -> Page {
        Page::parse(&ask(&self.http, format!("{}\r\n", self.head("GET", path)).as_bytes()).await)
    }

    /// Waits until the page contains all of these texts at the same time.
    pub async fn until_has(&self, path: &str, texts: &[&str]) {
        let has_all = async || {
            let page = self.get(path).await;
            texts.iter().all(|text| page.body.contains(text))
        };
        eventually(&format!("{texts:?} on {path}"), has_all).await;
    }

    /// Submits a form with the headers that a browser sends for a form of the operator page.
    pub async fn post(&mut self, path: &str, form: &[(&str, &str)]) -> Page {
        self.post_from(path, form, &[("Origin", "http://localhost"), ("Sec-Fetch-Site", "same-origin")]).await
    }

    /// Submits a form with these headers about its origin.
    pub async fn post_from(&mut self, path: &str, form: &[(&str, &str)], headers: &[(&str, &str)]) -> Page {
        let body = encoded(form);
        let mut request = self.head("POST", path);
        for (name, value) in headers {
            request += &format!("{name}: {value}\r\n");
        }
        request += "Content-Type: application/x-www-form-urlencoded\r\n";
        request += &format!("Content-Length: {}\r\n\r\n{body}", body.len());
        let page = Page::parse(&ask(&self.http, request.as_bytes()).await);
        for (_, cookie) in page.headers.iter().filter(|(name, _)| name == "set-cookie") {
            let (name, value) = cookie.split(';').next().unwrap().split_once('=').unwrap();
            if cookie.contains("Max-Age=0;") {
                self.cookies.remove(name);
            } else {
                self.cookies.insert(name.into(), value.into());
            }
        }
        page
    }

    /// Submits the form of a confirmation page, with a reason.
    pub async fn confirm(&mut self, question: &Page, reason: &str) -> Page {
        let mut form: Vec<_> = question.hidden();
        // Drops the last hidden field, which belongs to the form that switches between light and dark.
        form.pop();
        form.push(("reason".into(), reason.into()));
        let form: Vec<_> = form.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        self.post("/ui/act", &form).await
    }
}

/// Opens the confirmation page of an action.
pub async fn question(browser: &Browser, pairs: &[(&str, &str)]) -> Page {
    browser.get(&format!("/ui/confirm?{}", encoded(pairs))).await
}

/// Encodes names and values as a form or a query.
pub fn encoded(pairs: &[(&str, &str)]) -> String {
    let one = |text: &str| -> String {
        text.bytes()
            .map(|b| if b.is_ascii_alphanumeric() { char::from(b).to_string() } else { format!("%{b:02X}") })
            .collect()
    };
    pairs.iter().map(|(name, value)| format!("{}={}", one(name), one(value))).collect::<Vec<_>>().join("&")
}
