//! How a document names its Protobuf message.

use super::wire::Wire;

/// Where the name of the message is, as each serializer writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming<'d> {
    /// Nowhere.
    None,
    /// Confluent: indexes before the message.
    Indexes,
    /// Confluent: indexes in a header.
    IndexesApart(&'d [u8]),
    /// AWS Glue: the number of the message among all of its file, sorted by name.
    Sorted,
    /// Apicurio: a message `Ref` with the name.
    Ref,
    /// Apicurio: a header. From version 3 on a `Ref` with the same name, before the message, too.
    Header(Option<&'d [u8]>),
}

/// The name of a message.
pub(super) enum MessageName<'d> {
    /// From the top of the file down.
    Indexes(Vec<usize>),
    /// The number in the sorted list.
    Sorted(usize),
    /// Its name in the file, at the top.
    Simple(&'d [u8]),
}

impl<'d> Naming<'d> {
    /// The name, and the message.
    pub(super) fn split<'m: 'n, 'n>(self, document: &'m [u8]) -> Option<(MessageName<'n>, &'m [u8])>
    where
        'd: 'n,
    {
        let mut wire = Wire::new(document);
        match self {
            Self::None => None,
            Self::Indexes => Some((MessageName::Indexes(indexes(&mut wire)?), wire.rest())),
            Self::IndexesApart(apart) => {
                Some((MessageName::Indexes(indexes(&mut Wire::new(apart))?), document))
            }
            Self::Sorted => {
                let number = usize::try_from(wire.varint().ok()?).ok()?;
                Some((MessageName::Sorted(number), wire.rest()))
            }
            Self::Ref => reference(document).map(|(name, message)| (MessageName::Simple(name), message)),
            Self::Header(name) => {
                let behind = reference(document).filter(|(found, _)| Some(*found) == name);
                Some((MessageName::Simple(name?), behind.map_or(document, |(_, message)| message)))
            }
        }
    }
}

/// The name in a `Ref` with its length before it, and what follows.
fn reference(document: &[u8]) -> Option<(&[u8], &[u8])> {
    let [length, 0x0a, size, rest @ ..] = document else { return None };
    if *length >= 0x80 || size.checked_add(2) != Some(*length) {
        return None;
    }
    rest.split_at_checked(usize::from(*size))
}

/// The indexes of a message: their number, and each of them.
fn indexes(wire: &mut Wire<'_>) -> Option<Vec<usize>> {
    let mut index = || usize::try_from(wire.signed().ok()?).ok();
    (0..index()?).map(|_| index()).collect()
}
