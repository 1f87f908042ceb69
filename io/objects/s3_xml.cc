#include "io/objects/s3_xml.h"

#include <expat.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <functional>
#include <memory>

#include "io/text.h"

namespace ckptfs::io {
namespace {

constexpr size_t kDeepest = 16;
constexpr size_t kLongestText = 8 << 10;  // of one element: a key has at most 1,024 bytes, three times that encoded

// Calls `found` for each element that ends, with its path and its own text.
class Reader {
 public:
  using Found = std::function<void(const std::string& path, const std::string& text)>;

  explicit Reader(Found found) : parser_(XML_ParserCreate("UTF-8"), XML_ParserFree), found_(std::move(found)) {
    XML_SetUserData(parser_.get(), this);
    XML_SetElementHandler(parser_.get(), begin, end);
    XML_SetCharacterDataHandler(parser_.get(), characters);
    // No S3 server declares entities, and they can grow without end.
    XML_SetEntityDeclHandler(parser_.get(), entity);
  }

  // False: it is no XML, not whole, or beyond the bounds.
  bool read(std::string_view xml) {
    xml.remove_prefix(std::min(xml.find_first_not_of(" \r\n\t"), xml.size()));  // what takes long begins with these
    return XML_Parse(parser_.get(), xml.data(), static_cast<int>(xml.size()), 1) == XML_STATUS_OK && !refused_;
  }

 private:
  static Reader& self(void* data) { return *static_cast<Reader*>(data); }

  static void begin(void* data, const XML_Char* name, const XML_Char** /*attributes*/) {
    Reader& reader = self(data);
    if (reader.begins_.size() == kDeepest) return reader.refuse();
    reader.begins_.push_back(reader.path_.size());
    reader.path_ += "/";
    reader.path_ += name;
    reader.text_.clear();
  }

  static void end(void* data, const XML_Char* /*name*/) {
    Reader& reader = self(data);
    if (reader.refused_) return;
    reader.found_(reader.path_, reader.text_);
    reader.path_.resize(reader.begins_.back());
    reader.begins_.pop_back();
    reader.text_.clear();
  }

  static void characters(void* data, const XML_Char* text, int length) {
    Reader& reader = self(data);
    if (reader.text_.size() + static_cast<size_t>(length) > kLongestText) return reader.refuse();
    reader.text_.append(text, static_cast<size_t>(length));
  }

  static void entity(void* data, const XML_Char*, int, const XML_Char*, int, const XML_Char*, const XML_Char*,
                     const XML_Char*, const XML_Char*) {
    self(data).refuse();
  }

  void refuse() {
    refused_ = true;
    XML_StopParser(parser_.get(), XML_FALSE);
  }

  const std::unique_ptr<XML_ParserStruct, void (*)(XML_Parser)> parser_;
  const Found found_;
  std::string path_, text_;
  std::vector<size_t> begins_;  // of each open element's name in path_
  bool refused_ = false;
};

// "a%2Fb" to "a/b"; '+' is a space.
std::string percent_decoded(const std::string& text) {
  std::string decoded;
  for (size_t at = 0; at < text.size(); ++at) {
    unsigned value = 0;
    const char* const digits = text.data() + at + 1;
    if (text[at] == '%' && at + 2 < text.size() && std::from_chars(digits, digits + 2, value, 16).ptr == digits + 2) {
      decoded += static_cast<char>(value);
      at += 2;
    } else {
      decoded += text[at] == '+' ? ' ' : text[at];
    }
  }
  return decoded;
}

std::chrono::system_clock::time_point time_of(const std::string& text) {
  std::tm parts{};
  if (::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &parts) == nullptr) return {};
  return std::chrono::system_clock::from_time_t(::timegm(&parts));
}

}  // namespace

Result<ObjectPage> read_s3_list(std::string_view xml) {
  ObjectPage list;
  ObjectInfo object;
  std::string truncated, encoding;
  bool wrong = false, is_list = false;
  Reader reader([&](const std::string& path, const std::string& text) {
    constexpr std::string_view kContents = "/ListBucketResult/Contents";
    if (path == "/ListBucketResult/Contents/Key") object.key = text;
    if (path == "/ListBucketResult/Contents/Size") {
      const auto size = parse_number<uint64_t>(text);
      wrong = wrong || !size;
      object.size = size.value_or(0);
    }
    if (path == "/ListBucketResult/Contents/LastModified") object.changed = time_of(text);
    if (path == "/ListBucketResult/IsTruncated") truncated = text;
    if (path == "/ListBucketResult/EncodingType") encoding = text;
    if (path == "/ListBucketResult/NextContinuationToken") list.next = text;
    if (path == "/ListBucketResult") is_list = true;
    if (path == kContents) list.objects.push_back(std::exchange(object, {}));
  });
  if (!reader.read(xml) || !is_list || wrong) return Error(EPROTO, "the answer is no list of objects, or is cut short");
  if ((truncated != "true" && truncated != "false") || (truncated == "true") == list.next.empty())
    return Error(EPROTO, "the list does not say how it goes on");
  if (encoding == "url") {
    for (ObjectInfo& found : list.objects) found.key = percent_decoded(found.key);
  }
  return list;
}

std::string read_s3_text(std::string_view xml, std::string_view wanted) {
  std::string found;
  Reader reader([&](const std::string& path, const std::string& text) {
    if (path == wanted && found.empty()) found = text;
  });
  return reader.read(xml) ? found : "";
}

Result<S3Uploads> read_s3_uploads(std::string_view xml) {
  S3Uploads list;
  S3Upload upload;
  std::string truncated;
  bool is_list = false;
  Reader reader([&](const std::string& path, const std::string& text) {
    if (path == "/ListMultipartUploadsResult/Upload/Key") upload.key = text;
    if (path == "/ListMultipartUploadsResult/Upload/UploadId") upload.id = text;
    if (path == "/ListMultipartUploadsResult/Upload/Initiated") upload.begun = time_of(text);
    if (path == "/ListMultipartUploadsResult/Upload") list.uploads.push_back(std::exchange(upload, {}));
    if (path == "/ListMultipartUploadsResult/IsTruncated") truncated = text;
    if (path == "/ListMultipartUploadsResult/NextKeyMarker") list.next_key = text;
    if (path == "/ListMultipartUploadsResult/NextUploadIdMarker") list.next_id = text;
    if (path == "/ListMultipartUploadsResult") is_list = true;
  });
  if (!reader.read(xml) || !is_list) return Error(EPROTO, "the answer is no list of uploads, or is cut short");
  if (truncated != "true") list.next_key.clear();
  return list;
}

Result<S3Pieces> read_s3_pieces(std::string_view xml) {
  S3Pieces list;
  std::string truncated;
  bool is_list = false;
  Reader reader([&](const std::string& path, const std::string& text) {
    if (path == "/ListPartsResult/Part/LastModified") list.newest = std::max(list.newest, time_of(text));
    if (path == "/ListPartsResult/IsTruncated") truncated = text;
    if (path == "/ListPartsResult/NextPartNumberMarker") list.next = text;
    if (path == "/ListPartsResult") is_list = true;
  });
  if (!reader.read(xml) || !is_list) return Error(EPROTO, "the answer is no list of pieces, or is cut short");
  if (truncated != "true") list.next.clear();
  return list;
}

S3Failure read_s3_failure(std::string_view xml) {
  S3Failure failure;
  Reader reader([&](const std::string& path, const std::string& text) {
    if (path == "/Error/Code") failure.code = text;
    if (path == "/Error/Message") failure.message = text;
    if (path == "/Error/Region") failure.region = text;
  });
  (void)reader.read(xml);
  return failure;
}

}  // namespace ckptfs::io
