//! The declaration of a section: one line for each key, from which everything else about the key follows.

use super::page::Page;
use super::reading::ConfigReading;

/// A key of the configuration, or a section of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// The name, without the section.
    pub name: &'static str,
    /// The default as text. `None` without a default, and for one that depends on other keys.
    pub default: Option<&'static str>,
    /// What the value consists of.
    pub shape: Shape,
}

/// What the value of a key consists of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shape {
    /// One text, such as a number, a duration or a name.
    One,
    /// One text, or a list of texts.
    List,
    /// The same, in which a list of texts stands for a text.
    Parts,
    /// A table of texts with any names.
    Map,
    /// A table of keys.
    Section(Vec<Key>),
    /// A list of tables of these keys.
    Tables(Vec<Key>),
}

/// How a value is read from the texts of its key, and printed.
pub(super) trait Form<V> {
    /// Reads the value. Returns `None` only after a problem was recorded.
    fn read(&self, key: &str, reading: &mut ConfigReading<'_>) -> Option<V>;
    /// Prints the value as TOML. `name` is the key without the section.
    fn print(&self, name: &str, value: &V, page: &mut Page);
    /// What the value consists of.
    fn shape(&self) -> Shape {
        Shape::One
    }
}

/// A table of keys, declared with [`section!`].
pub(super) trait ConfigSection: Sized {
    /// All keys, in the order in which they are printed.
    fn keys() -> Vec<Key>;
    /// Reads all keys, below the key `at`. Returns `None` only after a problem was recorded.
    fn read(at: &str, reading: &mut ConfigReading<'_>) -> Option<Self>;
    /// Prints all keys, without the head of the table.
    fn print(&self, page: &mut Page);
}

/// The form of a section.
pub(super) struct Table;

impl<S: ConfigSection> Form<S> for Table {
    fn read(&self, key: &str, reading: &mut ConfigReading<'_>) -> Option<S> {
        S::read(key, reading)
    }

    fn print(&self, name: &str, value: &S, page: &mut Page) {
        page.section(name);
        value.print(page);
    }

    fn shape(&self) -> Shape {
        Shape::Section(S::keys())
    }
}

/// The form of a section that is read only when one of its keys is set.
pub(super) struct MaybeTable;

impl<S: ConfigSection> Form<Option<S>> for MaybeTable {
    fn read(&self, key: &str, reading: &mut ConfigReading<'_>) -> Option<Option<S>> {
        if reading.is_given(key) { S::read(key, reading).map(Some) } else { Some(None) }
    }

    fn print(&self, name: &str, value: &Option<S>, page: &mut Page) {
        if let Some(value) = value {
            Table.print(name, value, page);
        }
    }

    fn shape(&self) -> Shape {
        Shape::Section(S::keys())
    }
}

/// The key `name` of the section `at`; the sections themselves are below the empty key.
pub(super) fn joined(at: &str, name: &str) -> String {
    if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") }
}

/// Declares a struct and implements [`ConfigSection`] for it. One declaration per key:
///
/// `name: Type = DEFAULT => FORM; CHECK,`
///
/// - `DEFAULT` is the default as text, or `or(EXPRESSION)` with the value when the key is not set. Without it the form
///   decides. `name + other` declares another key that the form of the first one reads and prints.
/// - `|at, reading|` after the name of the struct are the key of the section and the [`ConfigReading`], for `EXPRESSION` and
///   `CHECK`.
/// - `FORM` is the [`Form`] that parses, checks and prints the value.
/// - `CHECK` is evaluated after the key was read. It and `EXPRESSION` may use this and all earlier keys: each name is an
///   `Option`, which is `None` after a problem.
macro_rules! section {
    ($(#[$doc:meta])* $section:ident |$at:ident, $reading:ident| {
        $($(#[$key_doc:meta])* $key:ident $(+ $other:ident)? : $type:ty
            $(= $default:literal)? $(= or($value:expr))? => $form:expr $(; $check:expr)?),+ $(,)?
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $section { $($(#[$key_doc])* pub $key: $type),+ }

        impl ConfigSection for $section {
            fn keys() -> Vec<Key> {
                vec![$(
                    Key {
                        name: stringify!($key),
                        default: [$($default)?].first().copied(),
                        shape: Form::<$type>::shape(&$form),
                    },
                    $(Key { name: stringify!($other), default: None, shape: Shape::One },)?
                )+]
            }

            fn read($at: &str, $reading: &mut ConfigReading<'_>) -> Option<Self> {
                $(
                    let key = joined($at, stringify!($key));
                    let $key: Option<$type> =
                        $(if !$reading.is_set(&key) { $value } else)? { $form.read(&key, $reading) };
                    $($check;)?
                )+
                Some(Self { $($key: $key?),+ })
            }

            fn print(&self, page: &mut Page) {
                $($form.print(stringify!($key), &self.$key, page);)+
            }
        }
    };
}
pub(super) use section;
