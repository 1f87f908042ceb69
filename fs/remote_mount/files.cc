// Open files of a remote mount: their bytes come from the ChunkReader, and those of views are made on a lane.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>

#include "fs/remote_mount/attributes.h"
#include "fs/remote_mount/operations.h"
#include "fs/remote_mount/request.h"
#include "io/aligned_buffer.h"

namespace ckptfs::fs::remote_mount {

namespace {

using Kind = Place::Kind;
using meta::remote::Entry;
using meta::remote::FileSpan;
using views::View;

thread_local io::AlignedBuffer view_buffer;

void reply_open(const RemoteRequest& request, fuse_file_info info, std::shared_ptr<OpenedFile> opened) {
  info.keep_cache = 1;  // it never changes
  info.noflush = 1;
  info.fh = request.parts().files.add(std::make_unique<FileHandle>(FileHandle{std::move(opened)}));
  if (!request.answer([&](fuse_req_t req) { return fuse_reply_open(req, &info); })) {
    request.parts().files.take(info.fh);
  }
}

void open_node(const RemoteRequest& request, const fuse_file_info& info) {
  with_view(request, request.place().step, [request, info](const std::shared_ptr<const RemoteView>& view) {
    const auto open = [request, info, view] {
      const View::Node* const node = view->view.node(request.place().index);
      if (node == nullptr) return request.error(ESTALE);
      if (!S_ISREG(View::type_of(*node))) return request.error(EISDIR);
      auto opened = std::make_shared<OpenedFile>();
      opened->view = view;
      opened->content = view->view.content(*node);
      reply_open(request, info, std::move(opened));
    };
    const View::Node* const node = view->view.node(request.place().index);
    if (node == nullptr || view->view.makes_quickly(*node)) return open();
    request.later([open](const io::RequestLimits&) { open(); });
  });
}

void op_open(fuse_req_t req, fuse_ino_t inode, fuse_file_info* given) {
  const RemoteRequest request(req, inode);
  if ((given->flags & O_ACCMODE) != O_RDONLY || (given->flags & O_TRUNC) != 0) return request.error(EROFS);
  if (request.place().is_top()) return request.error(EISDIR);
  if (request.place().kind == Kind::of_view) return open_node(request, *given);
  with_step(request, request.place().step, [request, info = *given](const std::shared_ptr<const OpenedStep>& step) {
    const meta::remote::UnionEntry* const found = files_of(*step, request.place()).at(request.place().index);
    if (found == nullptr) return request.error(ESTALE);
    if (step->step->entry(*found).kind != Entry::Kind::file) return request.error(EISDIR);
    auto opened = std::make_shared<OpenedFile>();
    opened->file = {step->step, *found};
    reply_open(request, info, std::move(opened));
  });
}

void reply_pieces(const RemoteRequest& request, const meta::remote::ChunkReader::Pieces& pieces) {
  std::vector<iovec> parts;
  for (const auto& piece : pieces) {
    parts.push_back({const_cast<std::byte*>(piece.bytes.data()), piece.bytes.size()});
  }
  request.answer([&](fuse_req_t req) { return fuse_reply_iov(req, parts.data(), static_cast<int>(parts.size())); });
}

void read_file(const RemoteRequest& request, OpenedFile& opened, const FileSpan& wanted) {
  meta::remote::ChunkReader& reader = *request.parts().reader;
  const auto ahead = opened.ahead.note(wanted, opened.size());
  request.become_interruptible();
  reader.read(opened.file, wanted, [request](const Result<meta::remote::ChunkReader::Pieces>& pieces) {
    pieces ? reply_pieces(request, pieces.value()) : request.failed(pieces.error());
  });
  if (ahead) opened.ahead.fetched_to(reader.fetch_ahead(opened.file, *ahead));
}

// The pieces of the step's files that the view's next bytes are made from, and no more.
void fetch_pieces_ahead(Parts& parts, OpenedFile& opened, const FileSpan& ahead) {
  for (const views::Content::Run& run : opened.content.sources(ahead.offset, ahead.size)) {
    const auto& file = opened.view->files->file(run.file);
    if (parts.reader->fetch_ahead(file, {run.offset, run.size}) < run.offset + run.size) {
      return opened.ahead.fetched_to(run.begin);
    }
  }
}

void read_view(const RemoteRequest& request, OpenedFile& opened, const FileSpan& wanted,
               const io::RequestLimits& limits) {
  const auto buffer = view_buffer.get(wanted.size);
  if (buffer.size() < wanted.size) return request.error(ENOMEM);
  Parts& parts = request.parts();
  if (const auto ahead = opened.ahead.note(wanted, opened.size())) fetch_pieces_ahead(parts, opened, *ahead);
  const auto read_piece = [&](uint32_t index, std::span<std::byte> bytes, uint64_t offset) -> Result<size_t> {
    if (std::chrono::steady_clock::now() > limits.deadline)
      return Error(ETIMEDOUT, "the pieces of a view took too long");
    TRY(parts.reader->read_now(opened.view->files->file(index), offset, bytes));
    return bytes.size();
  };
  const auto got = opened.content.read(buffer.first(wanted.size), wanted.offset, read_piece);
  if (!got) return request.failed(got.error());
  request.answer(
      [&](fuse_req_t req) { return fuse_reply_buf(req, reinterpret_cast<const char*>(buffer.data()), got.value()); });
}

void op_read(fuse_req_t req, fuse_ino_t inode, size_t size, off_t given, fuse_file_info* info) {
  const RemoteRequest request(req, inode);
  request.reads();
  const std::shared_ptr<OpenedFile> opened = Handles<FileHandle>::get(info->fh).opened;
  const uint64_t end = opened->size(), offset = std::min(static_cast<uint64_t>(given), end);
  const FileSpan wanted{offset, std::min<uint64_t>(size, end - offset)};
  if (!opened->view) return read_file(request, *opened, wanted);
  request.later(
      [request, opened, wanted](const io::RequestLimits& limits) { read_view(request, *opened, wanted, limits); });
}

void op_release(fuse_req_t req, fuse_ino_t inode, fuse_file_info* info) {
  const RemoteRequest request(req, inode);
  request.parts().files.take(info->fh);
  request.error(0);
}

void op_flush(fuse_req_t req, fuse_ino_t inode, fuse_file_info*) { RemoteRequest(req, inode).error(0); }

void op_fsync(fuse_req_t req, fuse_ino_t inode, int, fuse_file_info*) { RemoteRequest(req, inode).error(0); }

void op_lseek(fuse_req_t req, fuse_ino_t inode, off_t offset, int whence, fuse_file_info* info) {
  const RemoteRequest request(req, inode);
  const auto size = static_cast<off_t>(Handles<FileHandle>::get(info->fh).opened->size());
  if (whence != SEEK_DATA && whence != SEEK_HOLE) return request.error(EINVAL);
  if (offset < 0 || offset >= size) return request.error(ENXIO);
  request.answer([&](fuse_req_t answered) { return fuse_reply_lseek(answered, whence == SEEK_DATA ? offset : size); });
}

}  // namespace

void add_file_operations(fuse_lowlevel_ops& ops) {
  ops.open = op_open;
  ops.read = op_read;
  ops.flush = op_flush;
  ops.release = op_release;
  ops.fsync = op_fsync;
  ops.lseek = op_lseek;
}

}  // namespace ckptfs::fs::remote_mount
