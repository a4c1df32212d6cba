/* Records what a process asks of NVIDIA's kernel driver: load it with LD_PRELOAD.
 *
 * Each ioctl and mmap of a /dev/nvidia* file becomes a JSON line of the file that NV_RECORD names:
 * times, descriptor, path, request, result, errno, and the bytes of the argument before and after,
 * as hex without its trailing zeros. Parameters that an alloc or control of RM points at are
 * recorded likewise. All else goes through untouched. Processes that are started by the recorded
 * one write to a file of their own, with their number behind the name.
 *
 * Sizes of arguments: RM's requests tell theirs; UVM's are plain numbers, and the sizes here are
 * those of branch 580 (open-gpu-kernel-modules, kernel-open/nvidia-uvm/uvm_ioctl.h); of others the
 * first bytes that can be read are kept.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { MAX_BYTES = 16384, UNKNOWN_BYTES = 512, PAGE = 4096 };
enum { RM_CONTROL = 0x2A, RM_ALLOC = 0x2B, NVOS21 = 32, POINTER_AT = 16 };

struct blob {
  size_t size; /* what the argument has */
  size_t kept; /* what could be read */
  unsigned char bytes[MAX_BYTES];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static FILE *output;
static pid_t owner;

static const struct { unsigned long request; size_t size; } uvm_sizes[] = {
    {0x30000001, 16}, {75, 8},    {37, 40},   {38, 20}, {25, 32}, {26, 20}, {27, 56},
    {28, 28},         {29, 36},   {30, 36},   {33, 9264}, {34, 24}, {39, 8}, {66, 40}, {73, 24},
};

static uint64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* Copies what can be read of our own memory, page by page, without ever faulting. Where the system
 * forbids that, memory whose size is known is copied all the same. */
static size_t read_memory(unsigned char *target, uintptr_t address, size_t size, int known) {
  size_t done = 0;
  while (done < size) {
    size_t part = PAGE - (address + done) % PAGE;
    if (part > size - done) part = size - done;
    struct iovec to = {target + done, part}, from = {(void *)(address + done), part};
    if (process_vm_readv(getpid(), &to, 1, &from, 1, 0) != (ssize_t)part) {
      if (!known || (errno != ENOSYS && errno != EPERM)) break;
      memcpy(target + done, (void *)(address + done), part);
    }
    done += part;
  }
  return done;
}

static void take(struct blob *blob, uintptr_t address, size_t size, int known) {
  size_t wanted = size < MAX_BYTES ? size : MAX_BYTES;
  blob->size = size;
  blob->kept = address ? read_memory(blob->bytes, address, wanted, known) : 0;
}

/* Under the lock. A forked child would write into its parent's file: it gets its own. */
static FILE *open_output(void) {
  if (output && owner == getpid()) return output;
  const char *name = getenv("NV_RECORD");
  char other[4096];
  if (!name) return NULL;
  if (owner) {
    snprintf(other, sizeof other, "%s.%d", name, (int)getpid());
    name = other;
  }
  owner = getpid();
  output = fopen(name, "ae");
  return output;
}

static void put_hex(const char *name, const struct blob *blob) {
  size_t end = blob->kept;
  while (end && !blob->bytes[end - 1]) end--;
  fprintf(output, ",\"%s\":{\"size\":%zu,\"kept\":%zu,\"hex\":\"", name, blob->size, blob->kept);
  for (size_t i = 0; i < end; i++) {
    static const char digits[] = "0123456789abcdef";
    fputc(digits[blob->bytes[i] >> 4], output);
    fputc(digits[blob->bytes[i] & 15], output);
  }
  fputs("\"}", output);
}

/* Fills in the path of a descriptor; whether it is a node of the driver. */
static int is_driver(int fd, char *path, size_t size) {
  char link[64];
  if (fd < 0) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, size - 1);
  if (length < 0) return 0;
  path[length] = 0;
  const char *wanted = getenv("NV_RECORD_PATHS"); /* so that a test needs no GPU */
  return !strncmp(path, wanted ? wanted : "/dev/nvidia", strlen(wanted ? wanted : "/dev/nvidia"));
}

/* The size of an argument; 0 where it is not known. */
static size_t argument_size(unsigned long request) {
  for (size_t i = 0; i < sizeof uvm_sizes / sizeof *uvm_sizes; i++)
    if (uvm_sizes[i].request == request) return uvm_sizes[i].size;
  return request >> 30 & 3 ? request >> 16 & 0x3fff : 0;
}

/* What an alloc or control of RM points at: its address, and its size, 0 where that is not told. */
static uintptr_t find_parameters(unsigned long request, const struct blob *argument, size_t *size) {
  unsigned number = request & 0xff;
  uint64_t pointer;
  uint32_t told;
  if ((request >> 8 & 0xff) != 'F' || (number != RM_CONTROL && number != RM_ALLOC)) return 0;
  if (argument->kept < NVOS21) return 0;
  memcpy(&pointer, argument->bytes + POINTER_AT, sizeof pointer);
  size_t at = number == RM_CONTROL || argument->size == NVOS21 ? 24 : 32;
  memcpy(&told, argument->bytes + at, sizeof told);
  *size = told;
  return (uintptr_t)pointer;
}

static int real_ioctl(int fd, unsigned long request, void *argument) {
  static int (*next)(int, unsigned long, ...);
  if (!next) next = (int (*)(int, unsigned long, ...))dlsym(RTLD_NEXT, "ioctl");
  return next(fd, request, argument);
}

int ioctl(int fd, unsigned long given, ...) {
  va_list list;
  va_start(list, given);
  void *argument = va_arg(list, void *);
  va_end(list);
  unsigned long request = given & 0xffffffff; /* callers extend the sign, which is not looked at */
  char path[256];
  if (!is_driver(fd, path, sizeof path)) return real_ioctl(fd, given, argument);
  static __thread struct blob before, after, parameters_before, parameters_after;
  size_t size = argument_size(request), parameters_size = 0;
  take(&before, (uintptr_t)argument, size ? size : UNKNOWN_BYTES, size != 0);
  uintptr_t parameters = find_parameters(request, &before, &parameters_size);
  int known = parameters_size != 0; /* of an alloc RM need not be told: it knows its classes */
  if (!known) parameters_size = UNKNOWN_BYTES;
  take(&parameters_before, parameters, parameters_size, known);
  uint64_t began = now_ns();
  int result = real_ioctl(fd, given, argument);
  int number = errno;
  uint64_t took = now_ns() - began;
  take(&after, (uintptr_t)argument, before.size, size != 0);
  take(&parameters_after, parameters, parameters_size, known);
  pthread_mutex_lock(&lock);
  if (open_output()) {
    fprintf(output,
            "{\"call\":\"ioctl\",\"at_ns\":%" PRIu64 ",\"took_ns\":%" PRIu64
            ",\"fd\":%d,\"path\":\"%s\",\"request\":%lu,\"result\":%d,\"errno\":%d",
            began, took, fd, path, request, result, result < 0 ? number : 0);
    put_hex("before", &before);
    put_hex("after", &after);
    if (parameters) {
      put_hex("params_before", &parameters_before);
      put_hex("params_after", &parameters_after);
    }
    fputs("}\n", output);
    fflush(output);
  }
  pthread_mutex_unlock(&lock);
  errno = number;
  return result;
}

static void *map(void *address, size_t size, int prot, int flags, int fd, off_t offset) {
  /* The call itself, not the next mmap: this may run before the loader has found that one. */
  void *result = (void *)syscall(SYS_mmap, address, size, prot, flags, fd, offset);
  int number = errno;
  char path[256];
  if (is_driver(fd, path, sizeof path)) {
    pthread_mutex_lock(&lock);
    if (open_output()) {
      fprintf(output,
              "{\"call\":\"mmap\",\"at_ns\":%" PRIu64
              ",\"fd\":%d,\"path\":\"%s\",\"size\":%zu,\"prot\":%d,\"flags\":%d,"
              "\"offset\":%lld,\"address\":%" PRIuPTR ",\"result\":%" PRIuPTR ",\"errno\":%d}\n",
              now_ns(), fd, path, size, prot, flags, (long long)offset, (uintptr_t)address,
              result == MAP_FAILED ? 0 : (uintptr_t)result, result == MAP_FAILED ? number : 0);
      fflush(output);
    }
    pthread_mutex_unlock(&lock);
  }
  errno = number;
  return result;
}

void *mmap(void *address, size_t size, int prot, int flags, int fd, off_t offset) {
  return map(address, size, prot, flags, fd, offset);
}

void *mmap64(void *address, size_t size, int prot, int flags, int fd, off64_t offset) {
  return map(address, size, prot, flags, fd, offset);
}

/* Writes a line of the caller's own between the others, such as what it does next: plain words. */
void nv_record_mark(const char *text) {
  pthread_mutex_lock(&lock);
  if (open_output()) {
    fprintf(output, "{\"call\":\"mark\",\"at_ns\":%" PRIu64 ",\"text\":\"%s\"}\n", now_ns(), text);
    fflush(output);
  }
  pthread_mutex_unlock(&lock);
}
