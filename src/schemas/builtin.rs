//! Files that registries of Confluent have built in: serializers leave them out of the references of a schema.
//!
//! The fields are those of the public definitions `google/type` (github.com/googleapis/googleapis) and `confluent`
//! (github.com/confluentinc/schema-registry, `protobuf-types`).

/// Name and content. The package has the name of the folder.
const FILES: [(&str, &str); 19] = [
    (
        "confluent/meta.proto",
        r#"import "google/protobuf/descriptor.proto";
        message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; }
        extend google.protobuf.FileOptions { Meta file_meta = 1088; }
        extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
        extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
        extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
        extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }"#,
    ),
    (
        "confluent/type/decimal.proto",
        "message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }",
    ),
    (
        "google/type/calendar_period.proto",
        "enum CalendarPeriod { CALENDAR_PERIOD_UNSPECIFIED = 0; DAY = 1; WEEK = 2; FORTNIGHT = 3; MONTH = 4; QUARTER = 5;
        HALF = 6; YEAR = 7; }",
    ),
    (
        "google/type/color.proto",
        r#"import "google/protobuf/wrappers.proto";
        message Color { float red = 1; float green = 2; float blue = 3; google.protobuf.FloatValue alpha = 4; }"#,
    ),
    ("google/type/date.proto", "message Date { int32 year = 1; int32 month = 2; int32 day = 3; }"),
    (
        "google/type/datetime.proto",
        r#"import "google/protobuf/duration.proto";
        message DateTime { int32 year = 1; int32 month = 2; int32 day = 3; int32 hours = 4; int32 minutes = 5;
            int32 seconds = 6; int32 nanos = 7;
            oneof time_offset { google.protobuf.Duration utc_offset = 8; TimeZone time_zone = 9; } }
        message TimeZone { string id = 1; string version = 2; }"#,
    ),
    (
        "google/type/dayofweek.proto",
        "enum DayOfWeek { DAY_OF_WEEK_UNSPECIFIED = 0; MONDAY = 1; TUESDAY = 2; WEDNESDAY = 3; THURSDAY = 4; FRIDAY = 5;
        SATURDAY = 6; SUNDAY = 7; }",
    ),
    ("google/type/decimal.proto", "message Decimal { string value = 1; }"),
    (
        "google/type/expr.proto",
        "message Expr { string expression = 1; string title = 2; string description = 3; string location = 4; }",
    ),
    ("google/type/fraction.proto", "message Fraction { int64 numerator = 1; int64 denominator = 2; }"),
    (
        "google/type/interval.proto",
        r#"import "google/protobuf/timestamp.proto";
        message Interval { google.protobuf.Timestamp start_time = 1; google.protobuf.Timestamp end_time = 2; }"#,
    ),
    ("google/type/latlng.proto", "message LatLng { double latitude = 1; double longitude = 2; }"),
    (
        "google/type/localized_text.proto",
        "message LocalizedText { string text = 1; string language_code = 2; }",
    ),
    (
        "google/type/money.proto",
        "message Money { string currency_code = 1; int64 units = 2; int32 nanos = 3; }",
    ),
    (
        "google/type/month.proto",
        "enum Month { MONTH_UNSPECIFIED = 0; JANUARY = 1; FEBRUARY = 2; MARCH = 3; APRIL = 4; MAY = 5; JUNE = 6; JULY = 7;
        AUGUST = 8; SEPTEMBER = 9; OCTOBER = 10; NOVEMBER = 11; DECEMBER = 12; }",
    ),
    (
        "google/type/phone_number.proto",
        "message PhoneNumber {
            message ShortCode { string region_code = 1; string number = 2; }
            oneof kind { string e164_number = 1; ShortCode short_code = 2; }
            string extension = 3; }",
    ),
    (
        "google/type/postal_address.proto",
        "message PostalAddress { int32 revision = 1; string region_code = 2; string language_code = 3; string postal_code = 4;
            string sorting_code = 5; string administrative_area = 6; string locality = 7; string sublocality = 8;
            repeated string address_lines = 9; repeated string recipients = 10; string organization = 11; }",
    ),
    (
        "google/type/quaternion.proto",
        "message Quaternion { double x = 1; double y = 2; double z = 3; double w = 4; }",
    ),
    (
        "google/type/timeofday.proto",
        "message TimeOfDay { int32 hours = 1; int32 minutes = 2; int32 seconds = 3; int32 nanos = 4; }",
    ),
];

/// Adds the files that the schema or its references name, except those that the registry has returned.
pub(super) fn add_imported(text: &str, references: &mut Vec<(String, String)>) {
    let is_named =
        |name: &str| text.contains(name) || references.iter().any(|(_, reference)| reference.contains(name));
    let is_missing = |name: &str| references.iter().all(|(known, _)| known != name);
    let added: Vec<_> = FILES
        .iter()
        .filter(|(name, _)| is_named(name) && is_missing(name))
        .map(|(name, content)| {
            let package = name.rsplit_once('/').map_or("", |(folder, _)| folder).replace('/', ".");
            ((*name).to_owned(), format!("syntax = \"proto3\"; package {package}; {content}"))
        })
        .collect();
    references.extend(added);
}

#[cfg(test)]
mod tests {
    use super::super::protobuf::of_texts;
    use super::*;

    #[test]
    fn every_file_is_compiled_when_it_is_imported() {
        let imports: Vec<_> = FILES.iter().map(|(name, _)| format!("import \"{name}\";")).collect();
        let imports = imports.join(" ");
        let text = format!(
            "syntax = \"proto3\"; {imports}
            message Order {{
                option (confluent.message_meta).doc = \"an order\";
                google.type.Date at = 1 [(confluent.field_meta) = {{ tags: [\"PII\"] }}];
                confluent.type.Decimal price = 2;
                google.type.Month month = 3;
            }}"
        );
        let mut references = Vec::new();
        add_imported(&text, &mut references);
        assert_eq!(references.len(), FILES.len());
        let schema = of_texts(&text, &references).unwrap();
        let find = |path: [&str; 2]| {
            let path = path.map(str::to_owned);
            schema.find(&[0x0a, 3, 0x08, 0xea, 0x0f, 0x18, 2], &path).map(std::borrow::Cow::into_owned)
        };
        assert_eq!(find(["at", "year"]), Some(b"2026".to_vec()));
        let own = vec![("google/type/date.proto".to_owned(), "of the registry".to_owned())];
        let mut references = own.clone();
        add_imported("import \"google/type/date.proto\";", &mut references);
        assert_eq!(references, own);
    }
}
