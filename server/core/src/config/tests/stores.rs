//! Several stores.

use super::*;
use crate::job::StoreNumber;

const TWO: &str = "[[stores]]\nname = 'shop'\ndatabase_url = 'postgres://a/x'\n\
                   [[stores]]\nname = 'mail'\nnumber = 7\ndatabase_url = 'postgres://b/y'\nschema = 'jobs'\nwake = 'poll'\n";

fn store_flag(value: &str) -> Flag {
    flag("--store", "store", value)
}

fn names(settings: &Settings) -> Vec<String> {
    settings.broker.each_store().into_iter().map(|store| store.name).collect()
}

#[test]
fn one_url_is_one_store_with_all_that_the_configuration_says() {
    let settings = loaded("database_url = 'host=h'\nschema = 'jobs'\npool_size = 3", &[], vec![]).unwrap();
    assert!(settings.broker.stores.is_empty());
    let [store] = &settings.broker.each_store()[..] else { panic!("not one") };
    assert_eq!((store.name.as_str(), store.number, store.pool_size), ("default", None, 3));
    assert_eq!((store.database_url.as_str(), store.schema.as_str()), ("host=h", "jobs"));
}

#[test]
fn a_store_has_settings_of_its_own_and_takes_the_others_from_the_broker() {
    let text = format!("pool_size = 5\npoll_interval = '2s'\n{TWO}pool_size = 6\n");
    let settings = loaded(&text, &[], vec![]).unwrap();
    let [shop, mail] = &settings.broker.stores[..] else { panic!("not two") };
    assert_eq!((shop.name.as_str(), shop.pool_size, shop.schema.as_str(), shop.number), ("shop", 5, "howdah", None));
    assert_eq!((mail.pool_size, mail.schema.as_str(), mail.wake), (6, "jobs", WakeMode::Poll));
    assert_eq!(mail.number, StoreNumber::new(7));
    assert_eq!(mail.poll_interval, Duration::from_secs(2));
    assert_eq!(settings.broker.database_url, "", "none of them is meant without its name");
    let one = settings.broker.of_store(mail);
    assert_eq!((one.database_url.as_str(), one.schema.as_str(), one.wake), ("postgres://b/y", "jobs", WakeMode::Poll));
    assert_eq!(one.stores.len(), 1);
}

#[test]
fn a_store_may_take_no_new_types_as_long_as_another_one_takes_them() {
    let settings = loaded(&format!("{TWO}new_types = false\n"), &[], vec![]).unwrap();
    assert_eq!(settings.broker.stores.iter().map(|store| store.new_types).collect::<Vec<_>>(), [true, false]);
    let shown = as_toml(&settings);
    assert_eq!(shown.matches("# new_types = false").count(), 1, "{shown}");
    let none = TWO.replace("[[stores]]", "[[stores]]\nnew_types = false");
    assert!(error(&none, &[], vec![]).starts_with("no store accepts new task types"));
    let alone = "[[stores]]\nname = 'a'\ndatabase_url = 'host=h'\nnew_types = false";
    assert!(error(alone, &[], vec![]).starts_with("no store accepts new task types"));
}

#[test]
fn a_single_store_is_the_database_of_every_command() {
    let settings = loaded("", &[], vec![store_flag("shop=postgres://a/x?sslmode=require")]).unwrap();
    assert_eq!(settings.broker.database_url, "postgres://a/x?sslmode=require");
    assert_eq!(names(&settings), ["shop"]);
}

#[test]
fn the_first_source_that_names_a_database_names_all_of_them() {
    let flags = || vec![store_flag("a=host=h dbname=a"), store_flag("b=host=h dbname=b")];
    assert_eq!(names(&loaded(TWO, &[("HOWDAH_STORES", "c=host=c")], flags()).unwrap()), ["a", "b"]);
    assert_eq!(names(&loaded(TWO, &[("HOWDAH_STORES", "c=host=c\n\n d = host=d\n")], vec![]).unwrap()), ["c", "d"]);
    assert_eq!(names(&loaded(TWO, &[], vec![]).unwrap()), ["shop", "mail"]);
    let url = [("HOWDAH_DATABASE_URL", "host=h")];
    let settings = loaded(TWO, &url, vec![]).unwrap();
    assert_eq!((names(&settings), settings.broker.database_url.as_str()), (vec!["default".to_owned()], "host=h"));
    assert_eq!(loaded("database_url = 'host=x'", &[], flags()).unwrap().broker.stores.len(), 2);
}

#[test]
fn urls_of_stores_may_be_in_files() {
    let list = file("a=postgres://u:s3cret@h/a\nb=postgres://u:s3cret@h/b\n");
    let settings = loaded("", &[("HOWDAH_STORES_FILE", list.path().to_str().unwrap())], vec![]).unwrap();
    assert_eq!(names(&settings), ["a", "b"]);
    let url = file("postgres://u:s3cret@h/a\n");
    let text = format!("[[stores]]\nname = 'a'\ndatabase_url_file = '{}'", url.path().display());
    let settings = loaded(&text, &[], vec![]).unwrap();
    assert_eq!(settings.broker.stores[0].database_url, "postgres://u:s3cret@h/a");
    assert!(!as_toml(&settings).contains("s3cret") && as_toml(&settings).contains("# [[stores]]\n# name = \"a\""));
}

#[test]
fn an_invalid_store_is_reported_with_its_key_and_without_its_url() {
    let store = |more: &str| format!("[[stores]]\nname = 'a'\ndatabase_url = 'postgres://u:s3cret@h/a'\n{more}");
    let both = |more: &str| format!("{}\n[[stores]]\nname = 'b'\n{more}", store(""));
    let flag = |value: &str| error("", &[], vec![store_flag(value)]);
    let cases = [
        (error("stores = 3", &[], vec![]), "configuration file FILE: stores is a list of tables: write [[stores]]"),
        (error("[stores]\nname = 'a'", &[], vec![]), "configuration file FILE: stores is a list of tables"),
        (error("stores = [3]", &[], vec![]), "configuration file FILE: stores is a list of tables"),
        (error("[[stores]]\ndatabase_url = 'host=h'", &[], vec![]), "stores[0]: name is missing"),
        (error("[[stores]]\nname = 'a'", &[], vec![]), "store a: database_url is missing"),
        (
            error("[[stores]]\nname = 'A b'\ndatabase_url = 'host=h'", &[], vec![]),
            "configuration file FILE: stores[0].name is \"A b\": must be 1 to 63 characters of a-z 0-9 - _, and begin with a \
             letter",
        ),
        (
            error(&store("number = 4096"), &[], vec![]),
            "configuration file FILE: stores[0].number is \"4096\": must be a whole number from 0 to 89",
        ),
        (
            error(&store("pool_sise = 3"), &[], vec![]),
            "configuration file FILE: stores[0].pool_sise: a store has no such key; did you mean pool_size?",
        ),
        (
            error(&store("listen = '127.0.0.1:1'"), &[], vec![]),
            "configuration file FILE: stores[0].listen: a store has",
        ),
        (
            error(&store("pool_size = 0"), &[], vec![]),
            "configuration file FILE: stores[0].pool_size is \"0\": must be a whole number from 1 to 1000",
        ),
        (
            error(&store("new_types = 3"), &[], vec![]),
            "configuration file FILE: stores[0].new_types is \"3\": must be true or false",
        ),
        (error(&store("wake = [1]"), &[], vec![]), "configuration file FILE: stores[0].wake must be a single value"),
        (
            error(&store("database_url_file = 'x'"), &[], vec![]),
            "configuration file FILE: stores[0].database_url_file: database_url is set too",
        ),
        (
            error(&both("database_url = 'mysql://u:s3cret@h'"), &[], vec![]),
            "configuration file FILE: stores[1].database_url: must",
        ),
        (
            error(&both("database_url = 'postgres://u:s3cret@h/a'"), &[], vec![]),
            "store b: another store has the same database_url",
        ),
        (error(&format!("{TWO}{}", TWO.replace("/x", "/z")), &[], vec![]), "two stores have the name shop"),
        (
            error(&format!("{TWO}[[stores]]\nname = 'c'\nnumber = 7\ndatabase_url = 'host=c'"), &[], vec![]),
            "store c: another store has the number 7, too",
        ),
        (
            error(&format!("database_url = 'host=h'\n{TWO}"), &[], vec![]),
            "configuration file FILE: database_url: stores are configured too",
        ),
        (
            error(&format!("listen_database_url = 'host=h'\n{TWO}"), &[], vec![]),
            "listen_database_url applies to one database",
        ),
        (flag("postgres://u:s3cret@h/a"), "--store: must be NAME=URL, such as billing="),
        (flag("A=postgres://u:s3cret@h/a"), "--store: must be NAME=URL"),
        (flag("a=s3cret"), "--store a: must be a URL"),
        (flag("a=postgres://h/a,postgres://h/b"), "--store a: must not be a list of URLs"),
    ];
    for (said, expected) in cases {
        assert!(said.starts_with(expected), "{said}\n{expected}");
        assert!(!said.contains("s3cret"), "{said}");
    }
    let many: Vec<String> = (0..65).map(|n| format!("s{n}=host=h dbname=d{n}")).collect();
    assert_eq!(
        error("", &[("HOWDAH_STORES", &many.join("\n"))], vec![]),
        "65 stores are given; a broker serves at most 64"
    );
}

#[test]
fn a_pattern_stands_for_the_databases_whose_names_match() {
    let text =
        format!("{TWO}[[stores]]\nname = 'app_*'\ndatabase_url = 'postgres://u:p@b,c:5433/postgres?sslmode=require'\n");
    let settings = loaded(&text, &[], vec![]).unwrap();
    let pattern = &settings.broker.stores[2];
    let found = pattern.of_database("app_1").unwrap();
    assert_eq!(found.name, "app_1");
    assert_eq!(found.database_url, "postgres://u:p@b,c:5433/app%5F1?sslmode=require");
    for other in ["app", "shop", "postgres", "app_É"] {
        assert!(pattern.of_database(other).is_none(), "{other}");
    }
    let pairs = settings.broker.stores[2].clone();
    let pairs = StoreConfig { database_url: "host=h dbname=postgres password='a b'".into(), ..pairs };
    assert_eq!(pairs.of_database("app_2").unwrap().database_url, "host=h password='a b' dbname=app_2");
}

#[test]
fn a_pattern_is_neither_the_primary_store_nor_does_it_have_a_number() {
    let primary = "[[stores]]\nname = 'a*'\ndatabase_url = 'host=h'";
    assert!(error(primary, &[], vec![]).contains("the first store is the primary store"));
    let numbered = format!("{TWO}[[stores]]\nname = 'a*'\nnumber = 9\ndatabase_url = 'host=h'");
    assert!(error(&numbered, &[], vec![]).contains("a pattern stands for several stores"));
    let twice = format!("{TWO}[[stores]]\nname = 'a*b*'\ndatabase_url = 'host=h'");
    assert!(error(&twice, &[], vec![]).contains("must be 1 to 63 characters"));
}
