/* Times launches through the vendor's driver API, in C, so that no interpreter is in the way.
 *
 * The functions of libcuda are passed in, so that this links with the C library alone.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <time.h>

typedef int (*launch_function)(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                               unsigned by, unsigned bz, unsigned shared, void *stream,
                               void **parameters, void **extra);
typedef int (*synchronize_function)(void *stream);

static uint64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* Launches one block of one thread and waits for it, `count` times; `times` gets the nanoseconds
 * of each. Returns the first error of libcuda, 0 if there is none. */
int time_launches(launch_function launch, synchronize_function synchronize, void *function,
                  void *stream, void **parameters, int count, uint64_t *times) {
  for (int i = 0; i < count; i++) {
    uint64_t began = now_ns();
    int error = launch(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, 0);
    if (!error) error = synchronize(stream);
    if (error) return error;
    times[i] = now_ns() - began;
  }
  return 0;
}
