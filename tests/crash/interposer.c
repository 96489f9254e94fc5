/* Watches one directory of a process that it is loaded into with LD_PRELOAD, and ends the process at a chosen fsync.
 *
 *   EDGEPFL_CRASH_ROOT     the directory; absolute, without symbolic links
 *   EDGEPFL_CRASH_LOG      where every change under it is written, in the order in which they happen
 *   EDGEPFL_CRASH_CONTROL  a file of one page that both sides map: see struct control
 *   EDGEPFL_CRASH_SENDS    if it is set, what the process sends on sockets is written into the log as well
 *
 * One lock is held over each change and its record, so the log's order is the order of the changes.  Calls that change
 * files in ways which the log has no record for are written as 'X': whoever reads the log must then give up.
 *
 * Every record is a struct record and then its payload.  Numbers are the machine's own; 64-bit Linux only.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

struct control {
  volatile uint64_t syncs;  /* fsyncs under the directory so far */
  volatile uint64_t die_at; /* end at the fsync of this number; 0 for never */
  volatile uint64_t after;  /* whether it is done first */
};

struct record {
  uint32_t kind;
  uint32_t length; /* of the payload */
  uint64_t inode;
  uint64_t offset;
};

enum { LONGEST = 4096, MOST_FILES = 65536 };

static char root[LONGEST];
static size_t root_length;
static int log_handle = -1;
static int logs_sends;
static pid_t owner;
static struct control *control;
static uint64_t inodes[MOST_FILES]; /* of each descriptor of a file under the directory; 0 for others */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

__attribute__((constructor)) static void begin(void) {
  const char *where = getenv("EDGEPFL_CRASH_ROOT"), *log = getenv("EDGEPFL_CRASH_LOG");
  const char *page = getenv("EDGEPFL_CRASH_CONTROL");
  if (!where || !log || !page || strlen(where) >= LONGEST) return;
  long handle = syscall(SYS_openat, AT_FDCWD, page, O_RDWR | O_CLOEXEC, 0);
  if (handle < 0) _exit(97);
  control = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, (int)handle, 0);
  if (control == MAP_FAILED) _exit(97);
  log_handle = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (log_handle < 0) _exit(97);
  strcpy(root, where);
  root_length = strlen(root);
  logs_sends = getenv("EDGEPFL_CRASH_SENDS") != NULL;
  owner = getpid();
  unsetenv("LD_PRELOAD"); /* what it starts is not watched */
}

static int watching(void) { return log_handle >= 0 && getpid() == owner; }

static int is_under(const char *path) {
  return strncmp(path, root, root_length) == 0 && (path[root_length] == '/' || path[root_length] == 0);
}

static void put(char kind, uint64_t inode, uint64_t offset, const void *payload, size_t length) {
  struct record head = {(uint32_t)kind, (uint32_t)length, inode, offset};
  struct iovec parts[2] = {{&head, sizeof head}, {(void *)payload, length}};
  if (syscall(SYS_writev, log_handle, parts, 2) != (long)(sizeof head + length)) _exit(98);
}

/* The absolute path of a name, in a buffer of LONGEST bytes; empty if it is too long. */
static void absolute(int folder, const char *name, char *path) {
  char link[64];
  long length = 0;
  if (name[0] != '/') {
    if (folder == AT_FDCWD) strcpy(link, "/proc/self/cwd");
    else snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    length = syscall(SYS_readlinkat, AT_FDCWD, link, path, LONGEST - 2);
    if (length < 0) length = 0;
    path[length++] = '/';
  }
  if ((size_t)length + strlen(name) >= LONGEST) length = 0, name = "";
  strcpy(path + length, name);
}

static uint64_t inode_of(int handle) {
  struct stat found;
  return fstat(handle, &found) == 0 ? (uint64_t)found.st_ino : 0;
}

/* The inode of a file under the directory, 0 for any other descriptor. */
static uint64_t watched(int handle) {
  if (handle < 0 || handle >= MOST_FILES || inodes[handle] == 0) return 0;
  if (inode_of(handle) != inodes[handle]) inodes[handle] = 0; /* it was closed, and its number is another file's */
  return inodes[handle];
}

/* Files. */

static int opened(int folder, const char *name, int flags, mode_t mode) {
  char path[LONGEST];
  struct stat before;
  if (!watching() || (absolute(folder, name, path), !is_under(path)))
    return (int)syscall(SYS_openat, folder, name, flags, mode);
  pthread_mutex_lock(&lock);
  int is_new = syscall(SYS_newfstatat, AT_FDCWD, path, &before, AT_SYMLINK_NOFOLLOW) != 0;
  int handle = (int)syscall(SYS_openat, folder, name, flags, mode);
  int error = errno;
  if (handle >= 0 && handle < MOST_FILES) {
    inodes[handle] = inode_of(handle);
    const char *relative = path[root_length] ? path + root_length + 1 : "";
    if ((flags & O_TMPFILE) == O_TMPFILE) put('X', 0, 0, "O_TMPFILE", 9);
    else if (is_new) put('C', inodes[handle], 0, relative, strlen(relative));
    else if (flags & O_TRUNC) put('T', inodes[handle], 0, "", 0);
  }
  pthread_mutex_unlock(&lock);
  errno = error;
  return handle;
}

#define OPEN(NAME)                                        \
  int NAME(const char *name, int flags, ...) {            \
    va_list rest;                                         \
    va_start(rest, flags);                                \
    mode_t mode = va_arg(rest, mode_t);                   \
    va_end(rest);                                         \
    return opened(AT_FDCWD, name, flags, mode);           \
  }
#define OPEN_AT(NAME)                                     \
  int NAME(int folder, const char *name, int flags, ...) { \
    va_list rest;                                         \
    va_start(rest, flags);                                \
    mode_t mode = va_arg(rest, mode_t);                   \
    va_end(rest);                                         \
    return opened(folder, name, flags, mode);             \
  }
OPEN(open)
OPEN(open64)
OPEN_AT(openat)
OPEN_AT(openat64)

int creat(const char *name, mode_t mode) { return opened(AT_FDCWD, name, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *name, mode_t mode) { return opened(AT_FDCWD, name, O_CREAT | O_WRONLY | O_TRUNC, mode); }

ssize_t write(int handle, const void *data, size_t count) {
  if (!watching() || !watched(handle)) return syscall(SYS_write, handle, data, count);
  pthread_mutex_lock(&lock);
  ssize_t done = syscall(SYS_write, handle, data, count);
  int error = errno;
  if (done > 0) {
    off_t end = (off_t)syscall(SYS_lseek, handle, 0, SEEK_CUR);
    put('W', inodes[handle], (uint64_t)(end - done), data, (size_t)done);
  }
  pthread_mutex_unlock(&lock);
  errno = error;
  return done;
}

static ssize_t written_at(int handle, const void *data, size_t count, off_t offset) {
  if (!watching() || !watched(handle)) return syscall(SYS_pwrite64, handle, data, count, offset);
  pthread_mutex_lock(&lock);
  ssize_t done = syscall(SYS_pwrite64, handle, data, count, offset);
  int error = errno;
  if (done > 0) put('W', inodes[handle], (uint64_t)offset, data, (size_t)done);
  pthread_mutex_unlock(&lock);
  errno = error;
  return done;
}

ssize_t pwrite(int handle, const void *data, size_t count, off_t offset) {
  return written_at(handle, data, count, offset);
}
ssize_t pwrite64(int handle, const void *data, size_t count, off64_t offset) {
  return written_at(handle, data, count, offset);
}

static int cut(int handle, off_t length) {
  if (!watching() || !watched(handle)) return (int)syscall(SYS_ftruncate, handle, length);
  pthread_mutex_lock(&lock);
  int done = (int)syscall(SYS_ftruncate, handle, length);
  int error = errno;
  if (done == 0) put('T', inodes[handle], (uint64_t)length, "", 0);
  pthread_mutex_unlock(&lock);
  errno = error;
  return done;
}

int ftruncate(int handle, off_t length) { return cut(handle, length); }
int ftruncate64(int handle, off64_t length) { return cut(handle, length); }

/* Durability. */

/* A record about an open file or directory, with the name that it has now. */
static void put_named(char kind, int handle, uint64_t number) {
  char link[64], path[LONGEST];
  snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
  long length = syscall(SYS_readlinkat, AT_FDCWD, link, path, LONGEST - 1);
  path[length < 0 ? 0 : length] = 0;
  const char *relative = is_under(path) && path[root_length] ? path + root_length + 1 : "";
  put(kind, inodes[handle], number, relative, strlen(relative));
}

static int synced(long call, int handle) {
  if (!watching() || !watched(handle)) return (int)syscall(call, handle);
  pthread_mutex_lock(&lock);
  uint64_t number = ++control->syncs;
  int last = control->die_at == number;
  if (last && !control->after) {
    put_named('K', handle, number);
    kill(getpid(), SIGKILL);
  }
  int done = (int)syscall(call, handle);
  int error = errno;
  if (done == 0) put_named('F', handle, number);
  if (last && control->after) {
    put_named('K', handle, number);
    kill(getpid(), SIGKILL);
  }
  pthread_mutex_unlock(&lock);
  errno = error;
  return done;
}

int fsync(int handle) { return synced(SYS_fsync, handle); }
int fdatasync(int handle) { return synced(SYS_fdatasync, handle); }

/* Names. */

static int named(char kind, int folder, const char *name, long call, long argument) {
  char path[LONGEST];
  if (!watching() || (absolute(folder, name, path), !is_under(path))) return (int)syscall(call, folder, name, argument);
  pthread_mutex_lock(&lock);
  int done = (int)syscall(call, folder, name, argument);
  int error = errno;
  const char *relative = path[root_length] ? path + root_length + 1 : "";
  if (done == 0) put(kind, 0, 0, relative, strlen(relative));
  pthread_mutex_unlock(&lock);
  errno = error;
  return done;
}

int unlink(const char *name) { return named('U', AT_FDCWD, name, SYS_unlinkat, 0); }
int unlinkat(int folder, const char *name, int flags) { return named('U', folder, name, SYS_unlinkat, flags); }
int rmdir(const char *name) { return named('U', AT_FDCWD, name, SYS_unlinkat, AT_REMOVEDIR); }
int mkdir(const char *name, mode_t mode) { return named('M', AT_FDCWD, name, SYS_mkdirat, mode); }
int mkdirat(int folder, const char *name, mode_t mode) { return named('M', folder, name, SYS_mkdirat, mode); }

static int renamed(int old_folder, const char *old_name, int new_folder, const char *new_name, unsigned flags) {
  char paths[2 * LONGEST], other[LONGEST];
  if (!watching()) return (int)syscall(SYS_renameat2, old_folder, old_name, new_folder, new_name, flags);
  absolute(old_folder, old_name, paths);
  absolute(new_folder, new_name, other);
  if (!is_under(paths) && !is_under(other))
    return (int)syscall(SYS_renameat2, old_folder, old_name, new_folder, new_name, flags);
  pthread_mutex_lock(&lock);
  int done = (int)syscall(SYS_renameat2, old_folder, old_name, new_folder, new_name, flags);
  int error = errno;
  if (done == 0 && (flags || !is_under(paths) || !is_under(other))) put('X', 0, 0, "rename", 6);
  else if (done == 0) {
    size_t length = strlen(paths) + 1;
    strcpy(paths + length, other + root_length + 1);
    put('R', 0, 0, paths + root_length + 1, length - root_length - 1 + strlen(paths + length));
  }
  pthread_mutex_unlock(&lock);
  errno = error;
  return done;
}

int rename(const char *old_name, const char *new_name) { return renamed(AT_FDCWD, old_name, AT_FDCWD, new_name, 0); }
int renameat(int old_folder, const char *old_name, int new_folder, const char *new_name) {
  return renamed(old_folder, old_name, new_folder, new_name, 0);
}
int renameat2(int old_folder, const char *old_name, int new_folder, const char *new_name, unsigned flags) {
  return renamed(old_folder, old_name, new_folder, new_name, flags);
}

/* What the log has no record for. */

static void unknown(int handle, const char *call) {
  if (!watching() || !watched(handle)) return;
  pthread_mutex_lock(&lock);
  put('X', inodes[handle], 0, call, strlen(call));
  pthread_mutex_unlock(&lock);
}

ssize_t writev(int handle, const struct iovec *parts, int count) {
  unknown(handle, "writev");
  return syscall(SYS_writev, handle, parts, count);
}
int fallocate(int handle, int mode, off_t offset, off_t length) {
  unknown(handle, "fallocate");
  return (int)syscall(SYS_fallocate, handle, mode, offset, length);
}
int fallocate64(int handle, int mode, off64_t offset, off64_t length) {
  unknown(handle, "fallocate");
  return (int)syscall(SYS_fallocate, handle, mode, offset, length);
}
int posix_fallocate(int handle, off_t offset, off_t length) {
  unknown(handle, "posix_fallocate");
  return syscall(SYS_fallocate, handle, 0, offset, length) == 0 ? 0 : errno;
}
int posix_fallocate64(int handle, off64_t offset, off64_t length) { return posix_fallocate(handle, offset, length); }
ssize_t sendfile(int to, int from, off_t *offset, size_t count) {
  unknown(to, "sendfile");
  return syscall(SYS_sendfile, to, from, offset, count);
}
ssize_t sendfile64(int to, int from, off64_t *offset, size_t count) { return sendfile(to, from, offset, count); }
ssize_t copy_file_range(int from, off64_t *in, int to, off64_t *out, size_t count, unsigned flags) {
  unknown(to, "copy_file_range");
  return syscall(SYS_copy_file_range, from, in, to, out, count, flags);
}
int truncate(const char *name, off_t length) {
  int handle = opened(AT_FDCWD, name, O_WRONLY, 0);
  if (handle < 0) return -1;
  int done = cut(handle, length), error = errno;
  syscall(SYS_close, handle);
  errno = error;
  return done;
}
int truncate64(const char *name, off64_t length) { return truncate(name, length); }
int link(const char *old_name, const char *new_name) {
  char path[LONGEST];
  if (watching() && (absolute(AT_FDCWD, new_name, path), is_under(path))) put('X', 0, 0, "link", 4);
  return (int)syscall(SYS_linkat, AT_FDCWD, old_name, AT_FDCWD, new_name, 0);
}

/* The network. */

ssize_t send(int handle, const void *data, size_t count, int flags) {
  if (!logs_sends || !watching()) return syscall(SYS_sendto, handle, data, count, flags, NULL, 0);
  pthread_mutex_lock(&lock);
  ssize_t done = syscall(SYS_sendto, handle, data, count, flags, NULL, 0);
  int error = errno;
  if (done > 0) put('S', (uint64_t)handle, 0, data, (size_t)done);
  pthread_mutex_unlock(&lock);
  errno = error;
  return done;
}
