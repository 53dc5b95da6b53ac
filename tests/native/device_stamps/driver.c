/* A driver of CUDA without a device: events are reached when a test says so, on a clock that is not the host's.
 *
 * It holds what the real one does of what is used: an event on an idle stream is reached at once, events of a stream are
 * reached in their order, copies come between them, and a thread without a context is refused.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define INVALID_CONTEXT 201
#define NOT_READY 600
#define BUSY ((void *)0x5) /* the stream of kernels; others are idle */
#define EVENTS 100000

struct event {
  double time; /* milliseconds of the device; below 0 until it is reached */
};
struct work { /* of the busy stream, in its order */
  struct event *event;
  double *to;
  double value;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct work queue[EVENTS];
static int first, last, alive, failing = -1, calls;
static __thread void *current;

/* A device's clock: another zero, and faster by one in a thousand, which is more than any is. */
static double device_clock(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return 1.001 * (1e3 * time.tv_sec + 1e-6 * time.tv_nsec) - 5e5;
}

/* For tests: enter a context; reach so much of the busy stream's work; let the call after so many fail; count events. */
void fake_enter(void *context) { current = context; }
void fake_fail_after(int count) {
  pthread_mutex_lock(&lock);
  failing = count < 0 ? -1 : calls + count;
  pthread_mutex_unlock(&lock);
}
int fake_alive(void) {
  pthread_mutex_lock(&lock);
  const int found = alive;
  pthread_mutex_unlock(&lock);
  return found;
}
int fake_reach(int count) {
  pthread_mutex_lock(&lock);
  int reached = 0;
  for (; reached < count && first < last; ++reached, ++first) {
    struct work *one = &queue[first % EVENTS];
    if (one->to) *one->to = one->value;
    else one->event->time = device_clock();
  }
  pthread_mutex_unlock(&lock);
  return reached;
}

/* Takes the lock unless the call is to fail. */
static int refused(int needs_context) {
  pthread_mutex_lock(&lock);
  const int fails = failing >= 0 && calls++ >= failing;
  if (failing < 0) ++calls;
  const int code = fails ? 999 : needs_context && !current ? INVALID_CONTEXT : 0;
  if (code) pthread_mutex_unlock(&lock);
  return code;
}
static int done(void) { return pthread_mutex_unlock(&lock); }

int cuCtxGetCurrent(void **context) {
  *context = current;
  return 0;
}
int cuCtxSetCurrent(void *context) {
  current = context;
  return 0;
}
int cuStreamCreate(void **stream, unsigned flags) {
  const int code = refused(1);
  if (code) return code;
  *stream = (void *)(size_t)(0x10 + flags);
  return done();
}
int cuEventCreate(struct event **event, unsigned flags) {
  (void)flags;
  const int code = refused(1);
  if (code) return code;
  *event = calloc(1, sizeof **event);
  ++alive;
  return done();
}
int cuEventDestroy_v2(struct event *event) {
  pthread_mutex_lock(&lock);
  --alive;
  free(event);
  return done();
}
int cuEventRecord(struct event *event, void *stream) {
  const int code = refused(1);
  if (code) return code;
  event->time = stream == BUSY ? -1 : device_clock();
  if (stream == BUSY) queue[last++ % EVENTS] = (struct work){event, 0, 0};
  return done();
}
int cuEventQuery(struct event *event) {
  const int code = refused(1);
  if (code) return code;
  const int found = event->time < 0 ? NOT_READY : 0;
  done();
  return found;
}
int cuEventSynchronize(struct event *event) { return cuEventQuery(event); }
int cuEventElapsedTime_v2(float *milliseconds, struct event *from, struct event *to) {
  const int code = refused(1);
  if (code) return code;
  *milliseconds = (float)(to->time - from->time);
  return done();
}
int cuMemHostAlloc(void **memory, size_t bytes, unsigned flags) {
  (void)flags;
  const int code = refused(1);
  if (code) return code;
  *memory = malloc(bytes);
  return done();
}
int cuMemFreeHost(void *memory) {
  free(memory);
  return 0;
}
int cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t bytes, void *stream) {
  (void)bytes, (void)stream;
  const int code = refused(1);
  if (code) return code;
  struct work one = {0, to, 0};
  memcpy(&one.value, (const void *)(size_t)from, sizeof one.value);
  queue[last++ % EVENTS] = one;
  return done();
}
