/* The daemon outlives a flood of connections (accept.c). */
#ifndef AGOQD_ACCEPT_H
#define AGOQD_ACCEPT_H

#define ACCEPT_KEPT_FREE 32 /* descriptors that no connection gets */

int accept_is_guarded(void); /* descriptors kept free; naming it links accept.c into the program */

#endif
